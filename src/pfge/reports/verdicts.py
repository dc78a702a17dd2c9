"""Differences between methods: intervals and verdicts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite, log10, sqrt
from typing import Literal

import torch
from torch import Tensor

from pfge.lab.config.settings import MarginSettings
from pfge.lab.run.folder import RunFolder, find_scores
from pfge.lab.run.results import ComparisonRow
from pfge.metrics.significance import seed_difference
from pfge.reports.statistics import (
    MOST_SEEDS,
    MeanEstimate,
    by_method,
    is_comparable,
    measured,
    paired_metrics,
    task_of,
)
from pfge.tasks import Metric

Verdict = Literal["better", "worse", "equal", "undecided", "as good"]
"""What is known about a difference; "as good" is for claims alone, which are never "better" or "equal"."""
Way = list[tuple[MeanEstimate, float]]
"""Means, and the half widths of their intervals that would decide a verdict together."""


@dataclass(frozen=True, kw_only=True)
class Gap(MeanEstimate):
    """A method minus the reference in one metric; the mean is over the seeds that both have.

    Attributes:
        metric: The metric that differs.
        margin: The largest difference that does not matter, in the unit of the results.
        reference: The metric of the reference, mean over the same seeds.
        sum: Where closer is better, the method plus the reference, both minus the aim. The method is closer
            exactly if the sum and the difference have opposite signs.
        called: Name of the examples, for people.
    """

    metric: Metric
    margin: float
    reference: float = 0.0
    sum: MeanEstimate | None = None
    called: str = "test examples"

    @property
    def verdict(self) -> Verdict:
        """The conclusion from the intervals; undecided without noise of both seeds and examples."""
        if self.interval is None or not self.is_complete:
            return "undecided"
        low, high = self.interval
        if -self.margin <= low and high <= self.margin:
            return "equal"
        least, most = self._losses(low, high)
        return "better" if most < 0 else "worse" if least > 0 else "undecided"

    @property
    def loss(self) -> float:
        """A number that is below 0 where the difference is for the better."""
        if self.metric.better != "closer":
            return self.metric.penalty(self.mean)  # exact, as the sign decides
        return self.metric.penalty(self.reference + self.mean) - self.metric.penalty(self.reference)

    @property
    def in_words(self) -> str:
        """The verdict, with the margin where methods are equal."""
        return f"equal within {self.margin_in_words}" if self.verdict == "equal" else self.verdict

    @property
    def margin_in_words(self) -> str:
        """The margin in the unit of the metric."""
        return self._show(self.margin)

    @property
    def missing(self) -> str:
        """The seeds or examples that would decide an undecided verdict at this difference; "" if decided."""
        if self.verdict != "undecided":
            return ""
        if self.example_error is None:
            return "the scores of each example, which older versions did not keep"
        if self.seed_error is None:
            return "at least two more seeds"
        ways = self._ways()

        def needed(more: Callable[[MeanEstimate, float], float]) -> list[float]:
            """Return how many each of the ways needs."""
            return [max(more(part, half) for part, half in way) for way in ways]

        seeds = min(needed(lambda part, half: part.more_seeds(_rest(half, part.half_of_examples))))
        examples = min(
            needed(lambda part, half: part.more_examples(_rest(half, part.half_of_seeds(part.seeds))))
        )
        found = [f"about {_show_seeds(seeds)}"] if isfinite(seeds) else []
        if isfinite(examples):
            found.append(f"about {self._show_examples(examples)}")
        if found:
            return ", or ".join(found)
        seeds, examples = min(
            zip(
                needed(lambda part, half: part.more_seeds(half / sqrt(2))),
                needed(lambda part, half: part.more_examples(half / sqrt(2))),
                strict=True,
            )
        )
        if isfinite(seeds + examples):
            return f"about {_show_seeds(seeds)} and {self._show_examples(examples)}"
        return f"more than {MOST_SEEDS} seeds"

    def __str__(self) -> str:
        shown = f"{self._show(self.mean, signed=True)}{self._noise()}: {self.in_words}"
        return f"{shown}; to decide: {self.missing}" if self.missing else shown

    def _ways(self) -> list[Way]:
        """Return the ways to a verdict: all intervals exclude 0, or the difference is within the margin."""
        return [
            [(part, abs(part.mean)) for part in (self, self.sum) if part],
            [(self, self.margin - abs(self.mean))],
        ]

    def _losses(self, low: float, high: float) -> tuple[float, float]:
        """Return the least and the most that the method may lose, if the difference is from low to high.

        Where closer is better, d is the difference and s the sum, the loss is |s + d| / 2 - |s - d| / 2. That
        is the smaller of |d| and |s|, with the sign of their product.
        """
        if self.metric.better != "closer":
            ends = self.metric.penalty(low), self.metric.penalty(high)
            return min(ends), max(ends)
        if self.sum is None or self.sum.interval is None:
            return -inf, inf
        below, above = self.sum.interval
        return -max(min(-low, above), min(high, -below)), max(min(high, above), min(-low, -below))

    def _show_examples(self, more: float) -> str:
        step = 10 ** max(floor(log10(max(more, 1))) - 1, 0)  # two digits say as much as is known
        return f"{ceil(max(more, 1) / step) * step:,} more {self.called}"

    def _noise(self) -> str:
        if self.interval is None:
            return ""
        digits = self.metric.digits
        low, high = (f"{self.metric.factor * end:+.{digits}f}" for end in self.interval)
        sources = [self.called] if self.example_error is not None else []
        sources.append("one seed" if self.seeds == 1 else f"{self.seeds} seeds")
        together = f", {self.compared} comparisons together" if self.compared > 1 else ""
        return f" (95 % interval {low} to {high} over {' and '.join(sources)}{together})"

    def _show(self, value: float, *, signed: bool = False) -> str:
        shown = self.metric.factor * value
        text = f"{shown:+.{self.metric.digits}f}" if signed else f"{shown:.3g}"
        return f"{text} points" if self.metric.unit == "%" else text


@dataclass(frozen=True, kw_only=True)
class Claim(Gap):
    """The claim that a method is as good as the reference: not worse by more than the margin.

    A claim has one rule for its verdict, its words and what would decide it. With the least and the most that
    the method may lose by the intervals, it is "as good" if the most is within the margin, else "worse" if
    the least is above 0, else "undecided".
    """

    @classmethod
    def about(cls, gap: Gap) -> "Claim":
        """Return the claim about a difference."""
        return cls(**vars(gap))

    @property
    def verdict(self) -> Verdict:
        """Whether the claim holds ("as good"), does not ("worse"), or is undecided."""
        if self.interval is None or not self.is_complete:
            return "undecided"
        least, most = self._losses(*self.interval)
        return "as good" if most <= self.margin else "worse" if least > 0 else "undecided"

    @property
    def in_words(self) -> str:
        """The verdict, with the margin if the claim holds."""
        return f"not worse by more than {self.margin_in_words}" if self.verdict == "as good" else self.verdict

    def _ways(self) -> list[Way]:
        if self.metric.better == "closer":
            return super()._ways()
        return [[(self, self.margin - self.loss)], [(self, self.loss)]]


def _rest(half: float, other: float) -> float:
    """Return the half width that one source of noise may have beside that of the other; -1 if none."""
    return sqrt(half**2 - other**2) if half > other else -1.0


def _show_seeds(more: float) -> str:
    count = max(round(more), 1)
    return f"{count} more seed{'s' * (count > 1)}"


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
        methods: The methods to compare; all if None.
        part: Split of the data, with ".calibrated" for results at temperatures; see `measured`.
        margins: Largest differences that do not matter.
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
        metric: The metric to compare.
        method: For each seed, per-example values that average to the metric, [N]; None without them.
        reference: The same values of the reference, for the same examples.
        margins: Largest differences that do not matter.
        compared: How many differences the intervals hold for together.
        called: Name of the examples, for people.

    Returns:
        The gap; None if no seed has numbers of the same examples of both, or one is not finite.
    """
    pairs = [
        (one, other)
        for seed in sorted(method.keys() & reference.keys())
        if (one := method[seed]) is not None and (other := reference[seed]) is not None
    ]
    shapes = {values.shape for pair in pairs for values in pair}
    if len(shapes) != 1 or not pairs[0][0].numel() or pairs[0][0].ndim != 1:
        return None  # no seed, scores of different test sets, or no example
    first, second = (torch.stack(of).double() for of in zip(*pairs, strict=True))
    differences = first - second
    if not bool(differences.isfinite().all()):
        return None
    at, step = second.mean().item(), _step(first, second)
    # Which of two values is closer to the aim depends on both, and so on their sum too.
    sums = first + second - 2 * (metric.aim or 0.0) if metric.better == "closer" else None
    of_differences = _mean_estimate(differences, step, compared)
    return Gap(
        **vars(of_differences),
        metric=metric,
        margin=margin_of(metric, at, margins),
        reference=at,
        sum=None if sums is None else _mean_estimate(sums, step, compared),
        called=called,
    )


def margin_of(metric: Metric, reference: float, margins: MarginSettings) -> float:
    """Return the largest difference in a metric that does not matter."""
    if metric.unit == "%":
        return margins.points / 100
    return margins.nll if metric.name == "nll" else margins.share * abs(reference)


def _mean_estimate(values: Tensor, step: float, compared: int) -> MeanEstimate:
    """Return the mean of values by seed and example, [S, N]."""
    seeds, examples = values.shape
    return MeanEstimate(
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
            for name, values in scores.items()
            if name.startswith(prefix) and "." not in name.removeprefix(prefix)
        }
        for seed, file in files.items()
        if (scores := find_scores(file))
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
    """Return the gap by the metrics alone, for runs of older versions without scores of examples."""
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
