"""How far methods are from one of them, and whether that is more than noise over test images and seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pfge.lab.run.folder import RunFolder
from pfge.lab.run.results import ComparisonRow
from pfge.metrics.significance import Difference, SeedDifference, paired_bootstraps, seed_difference
from pfge.reports.statistics import by_method, examples_of, paired_metrics, task_of
from pfge.storage.recorded_tensors import read_recorded
from pfge.tasks import Metric

UNKNOWN = "noise unknown"

SeedScores = Mapping[int, Mapping[str, Tensor]]
"""The scores of each example, by seed and by name."""


@dataclass(frozen=True)
class Gap:
    """A method minus the reference in one metric.

    Attributes:
        metric: Which.
        mean: The difference, mean over the seeds that both have.
        over_images: With its interval over test images, if the run kept each example's scores.
        over_seeds: With its standard error, if there are two seeds or more.
        examples: What the examples are called.
        reference: The metric of the reference, mean over the same seeds.
    """

    metric: Metric
    mean: float
    over_images: Difference | None
    over_seeds: SeedDifference | None
    examples: str = "images"
    reference: float = 0.0

    @property
    def within_noise(self) -> bool | None:
        """Whether another test set, or other seeds (two standard errors), might turn it round.

        None if neither can be told.
        """
        if not self.over_images and not self.over_seeds:
            return None
        intervals = []
        if self.over_images:
            intervals.append((self.over_images.low, self.over_images.high))
        if self.over_seeds:
            mean, twice = self.over_seeds.mean, 2 * self.over_seeds.standard_error
            intervals.append((mean - twice, mean + twice))
        return not all(self._is_one_way(low, high) for low, high in intervals)

    @property
    def verdict(self) -> str:
        """The difference in a word or two."""
        if not self.mean:
            return "equal"
        if self.within_noise is None:
            return UNKNOWN
        if self.within_noise:
            return "within noise"
        return "better" if self._change(self.mean) < 0 else "worse"

    def _is_one_way(self, low: float, high: float) -> bool:
        """Return whether every difference of an interval is for the better, or every one for the worse.

        Where closer is better, a difference that may lead past the aim to the other side can be both.
        """
        changes = self._change(low), self._change(high)
        return max(changes) < 0 or (min(changes) > 0 and (low > 0 or high < 0))

    def _change(self, difference: float) -> float:
        """Return a number that is below 0 where a difference is for the better."""
        if self.metric.better != "closer":
            return self.metric.penalty(difference)  # exact, as the sign decides
        return self.metric.penalty(self.reference + difference) - self.metric.penalty(self.reference)

    def __str__(self) -> str:
        factor, digits = self.metric.factor, self.metric.digits
        noise = []
        if self.over_images:
            low, high = (factor * end for end in (self.over_images.low, self.over_images.high))
            noise.append(f"95 % interval {low:+.{digits}f} to {high:+.{digits}f} over test {self.examples}")
        if self.over_seeds:
            noise.append(f"± {factor * self.over_seeds.standard_error:.{digits}f} over seeds")
        about = f" ({'; '.join(noise)})" if noise else ""
        unit = " points" if self.metric.unit == "%" else ""
        return f"{factor * self.mean:+.{digits}f}{unit}{about}, {self.verdict}"


def find_gaps(
    folder: RunFolder,
    rows: Sequence[ComparisonRow],
    reference: str,
    methods: Sequence[str] | None = None,
    part: str = "test",
) -> dict[str, dict[str, Gap]]:
    """Return how methods differ from a reference in each paired metric, for those that share a seed with it.

    Args:
        folder: The run, for the scores of each example.
        rows: Its results.
        reference: The method that the others are compared with.
        methods: Which others; all if None.
        part: Of the data.
    """
    found = by_method(rows)
    if reference not in found:
        return {}
    wanted = [name for name in (found if methods is None else methods) if name != reference and name in found]
    scores = {name: _read_scores(folder, found[name], part) for name in [*wanted, reference]}
    metrics = paired_metrics(rows, part)
    known = compare_scores({name: scores[name] for name in wanted}, scores[reference], metrics)
    examples = examples_of(task_of(rows))
    gaps: dict[str, dict[str, Gap]] = {}
    for name in wanted:
        for metric in metrics:
            gap = known.get((name, metric.name)) or _of_rows(found[name], found[reference], metric, part)
            if gap:
                gaps.setdefault(name, {})[metric.name] = replace(gap, examples=examples)
    return gaps


def compare_scores(
    methods: Mapping[str, SeedScores], reference: SeedScores, metrics: Sequence[Metric]
) -> dict[tuple[str, str], Gap]:
    """Return how each method differs from the reference in paired metrics, on the seeds that both have.

    Images are drawn again and again for the mean over seeds, so that the interval is that of the test set;
    what seeds add is told apart, by the standard error of their differences.
    """
    names, differences, of_seeds = [], [], []
    for method, scores in methods.items():
        for metric in metrics:
            both = [
                (metric.per_example(scores[seed]), metric.per_example(reference[seed]))
                for seed in sorted(scores.keys() & reference.keys())
            ]
            pairs = [(mine, other) for mine, other in both if mine is not None and other is not None]
            if len({values.shape for pair in pairs for values in pair}) != 1:
                continue  # no seed, or scores of different test sets
            first, second = zip(*pairs, strict=True)
            names.append((method, metric, torch.stack(second).mean().item()))
            differences.append((torch.stack(first) - torch.stack(second)).mean(0))
            means = [[values.mean().item() for values in of_method] for of_method in (first, second)]
            of_seeds.append(seed_difference(*means) if len(pairs) > 1 else None)
    if not names:
        return {}
    intervals = paired_bootstraps(torch.stack(differences, 1))
    return {
        (method, metric.name): Gap(metric, interval.mean, interval, seeds, reference=at)
        for (method, metric, at), interval, seeds in zip(names, intervals, of_seeds, strict=True)
    }


def _read_scores(folder: RunFolder, rows: Sequence[ComparisonRow], part: str) -> SeedScores:
    """Return the scores of each example as predicted, for every seed that kept them."""
    files = {row.seed: folder.scores(row.seed, row.method) for row in rows}
    prefix = f"{part}."
    return {
        seed: {
            name.removeprefix(prefix): values
            for name, values in read_recorded(file).items()
            if name.startswith(prefix) and "calibrated" not in name
        }
        for seed, file in files.items()
        if file.is_file()
    }


def _of_rows(
    method: Sequence[ComparisonRow], reference: Sequence[ComparisonRow], metric: Metric, part: str
) -> Gap | None:
    """Return what the metrics alone say: older versions kept no scores of examples."""
    first, second = (
        {row.seed: row.metrics[part][metric.name] for row in rows} for rows in (method, reference)
    )
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    over_seeds = None
    if len(seeds) > 1:
        over_seeds = seed_difference([first[seed] for seed in seeds], [second[seed] for seed in seeds])
    mean = sum(first[seed] - second[seed] for seed in seeds) / len(seeds)
    of_reference = sum(second[seed] for seed in seeds) / len(seeds)
    return Gap(metric, mean, None, over_seeds, reference=of_reference)
