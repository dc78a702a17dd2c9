"""How far methods are from one of them, with the noise over test examples and over seeds."""

from collections.abc import Mapping, Sequence
from math import sqrt

import torch
from torch import Tensor

from pfge.lab.config.schema import MarginSettings
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.results import ComparisonRow
from pfge.metrics.significance import seed_difference
from pfge.reports.noisy_mean import NoisyMean
from pfge.reports.statistics import by_method, is_comparable, measured, paired_metrics, task_of
from pfge.reports.verdicts import Gap
from pfge.storage.recorded_tensors import read_recorded
from pfge.tasks import Metric

SeedScores = Mapping[int, Mapping[str, Tensor]]
"""The scores of each example, by seed and by name."""
DEFAULT_MARGINS = MarginSettings()
MOST_LEVELS = 65
"""Scores of more values than these are taken for numbers without steps."""


def find_gaps(
    folder: RunFolder,
    rows: Sequence[ComparisonRow],
    reference: str,
    methods: Sequence[str] | None = None,
    part: str = "test",
    margins: MarginSettings = DEFAULT_MARGINS,
    compared: int | None = None,
) -> dict[str, dict[str, Gap]]:
    """Return how methods differ from a reference in each paired metric, for those that share a seed with it.

    Metrics that do not compare methods, as the task needs a calibration, are left out.

    Args:
        folder: The run, for the scores of each example.
        rows: Its results.
        reference: The method that the others are compared with.
        methods: Which others; all if None.
        part: Of the data, and ".calibrated" if it is at temperatures; as of `measured`.
        margins: What differences do not matter.
        compared: How many differences the intervals hold for together; as many as there are methods if None.
    """
    found = by_method([row for row in rows if measured(row, part)])
    if reference not in found:
        return {}
    wanted = [name for name in (found if methods is None else methods) if name != reference and name in found]
    scores = {name: _read_scores(folder, found[name], part) for name in [*wanted, reference]}
    task = task_of(rows)
    called = f"{part.partition('.')[0]} examples"
    together = compared or len(wanted)
    gaps: dict[str, dict[str, Gap]] = {}
    for name in wanted:
        for metric in paired_metrics([row for of in found.values() for row in of], part):
            if not is_comparable(task, metric, part):
                continue
            numbers = [
                {seed: metric.per_example(of_seed) for seed, of_seed in scores[who].items()}
                for who in (name, reference)
            ]
            values = [
                {row.seed: (measured(row, part) or {})[metric.name] for row in found[who]}
                for who in (name, reference)
            ]
            gap = compare(metric, *numbers, margins=margins, compared=together, called=called) or _of_values(
                metric, *values, margins=margins, compared=together, called=called
            )
            if gap:
                gaps.setdefault(name, {})[metric.name] = gap
    return gaps


def compare(
    metric: Metric,
    method: Mapping[int, Tensor | None],
    reference: Mapping[int, Tensor | None],
    *,
    margins: MarginSettings = DEFAULT_MARGINS,
    compared: int = 1,
    called: str = "test examples",
) -> Gap | None:
    """Return how a method differs from the reference in a metric, on the seeds that both have.

    Args:
        metric: Which.
        method: For each seed, the numbers of examples whose mean the metric is, [N]; None if there are none.
        reference: The same of the other method, of the same examples.
        margins: What differences do not matter.
        compared: How many differences the intervals hold for together.
        called: What the examples are called.

    Returns:
        The gap; None if no seed has numbers of the same examples of both, or one is not finite.
    """
    pairs = [
        (one, other)
        for seed in sorted(method.keys() & reference.keys())
        if (one := method[seed]) is not None and (other := reference[seed]) is not None
    ]
    if len({values.shape for pair in pairs for values in pair}) != 1 or not pairs[0][0].numel():
        return None  # no seed, scores of different test sets, or no example
    first, second = (torch.stack(of).double() for of in zip(*pairs, strict=True))
    differences = first - second
    if not bool(differences.isfinite().all()):
        return None
    at, step = second.mean().item(), _step(first, second)
    # Which of two values is closer to the aim depends on both, and so on their sum too.
    sums = first + second - 2 * (metric.aim or 0.0) if metric.better == "closer" else None
    of_differences = _noisy_mean(differences, step, compared)
    return Gap(
        **vars(of_differences),
        metric=metric,
        margin=margin_of(metric, at, margins),
        reference=at,
        sum=None if sums is None else _noisy_mean(sums, step, compared),
        called=called,
    )


def margin_of(metric: Metric, reference: float, margins: MarginSettings) -> float:
    """Return the largest difference in a metric that does not matter."""
    if metric.unit == "%":
        return margins.points / 100
    return margins.nll if metric.name == "nll" else margins.share * abs(reference)


def _noisy_mean(values: Tensor, step: float, compared: int) -> NoisyMean:
    """Return the mean of values by seed and example, [S, N]."""
    seeds, examples = values.shape
    return NoisyMean(
        mean=values.mean().item(),
        seeds=seeds,
        seed_error=_error(values.mean(1)),
        examples=examples,
        example_error=_error(values.mean(0)) or 0.0,
        step=step,
        compared=compared,
    )


def _step(first: Tensor, second: Tensor) -> float:
    """Return the smallest difference between scores if they are 0 or multiples of it, else 0."""
    scale = max(first.abs().max().item(), second.abs().max().item())
    if not scale:
        return 1.0  # as if examples were right or wrong, and all of them wrong
    if len(torch.unique(first[0])) > MOST_LEVELS:
        return 0.0
    # Rounded, since equal scores may differ in their last bits.
    scores = torch.stack([first, second, torch.zeros_like(first)])
    levels = torch.unique((scores / scale).round(decimals=6))
    if len(levels) > MOST_LEVELS:
        return 0.0
    step = levels.diff().min().item()
    multiples = levels / step
    return scale * step if bool(((multiples - multiples.round()).abs() < 0.01).all()) else 0.0


def _error(values: Tensor) -> float | None:
    return values.std().item() / sqrt(len(values)) if len(values) > 1 else None


def _read_scores(folder: RunFolder, rows: Sequence[ComparisonRow], part: str) -> SeedScores:
    """Return the scores of each example, for every seed that kept them."""
    files = {row.seed: folder.scores(row.seed, row.method) for row in rows}
    prefix = f"{part}."
    return {
        seed: {
            name.removeprefix(prefix): values
            for name, values in read_recorded(file).items()
            if name.startswith(prefix) and "." not in name.removeprefix(prefix)
        }
        for seed, file in files.items()
        if file.is_file()
    }


def _of_values(
    metric: Metric,
    method: Mapping[int, float],
    reference: Mapping[int, float],
    *,
    margins: MarginSettings,
    compared: int,
    called: str,
) -> Gap | None:
    """Return what the metrics alone say: older versions kept no scores of examples."""
    seeds = sorted(method.keys() & reference.keys())
    if not seeds:
        return None
    first, second = ([of[seed] for seed in seeds] for of in (method, reference))
    at = sum(second) / len(seeds)
    return Gap(
        metric=metric,
        mean=sum(first) / len(seeds) - at,
        margin=margin_of(metric, at, margins),
        reference=at,
        seeds=len(seeds),
        seed_error=seed_difference(first, second).standard_error if len(seeds) > 1 else None,
        compared=compared,
        called=called,
    )
