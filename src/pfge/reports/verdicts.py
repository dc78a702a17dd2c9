"""A difference between two methods in one metric: its interval, its verdict, and what would decide it."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite, log10, sqrt
from typing import Literal

from pfge.reports.noisy_mean import MOST_SEEDS, NoisyMean
from pfge.tasks import Metric

Verdict = Literal["better", "worse", "equal", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Gap(NoisyMean):
    """A method minus the reference in one metric; the mean is over the seeds that both have.

    Attributes:
        metric: Which.
        margin: The largest difference that does not matter, in the unit of the results.
        reference: The metric of the reference, mean over the same seeds.
        sum: Where closer is better, the method plus the reference, both minus the aim. The method is closer
            exactly if the sum and the difference have opposite signs.
        called: What the examples are called.
    """

    metric: Metric
    margin: float
    reference: float = 0.0
    sum: NoisyMean | None = None
    called: str = "test examples"

    @property
    def verdict(self) -> Verdict:
        """What the intervals allow to say; undecided unless they are of seeds and of examples."""
        if self.interval is None or not self.is_complete:
            return "undecided"
        low, high = self.interval
        if -self.margin <= low and high <= self.margin:
            return "equal"
        least, most = self._losses(low, high)
        return "better" if most < 0 else "worse" if least > 0 else "undecided"

    @property
    def is_no_worse(self) -> bool:
        """Whether all that the intervals allow is better, or worse by no more than the margin."""
        if self.interval is None or not self.is_complete:
            return False
        _, most = self._losses(*self.interval)
        return most <= self.margin

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
        """What would decide an undecided verdict, at the difference that was found; "" if it is decided."""
        if self.verdict != "undecided":
            return ""
        if self.example_error is None:
            return "the scores of each example, which older versions did not keep"
        if self.seed_error is None:
            return "at least two more seeds"
        # All intervals must exclude 0, or that of the difference must lie within the margin.
        ways: list[list[tuple[NoisyMean, float]]] = [
            [(part, abs(part.mean)) for part in (self, self.sum) if part],
            [(self, self.margin - abs(self.mean))],
        ]

        def needed(more: Callable[[NoisyMean, float], float]) -> list[float]:
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
        together = f", {self.compared} methods together" if self.compared > 1 else ""
        return f" (95 % interval {low} to {high} over {' and '.join(sources)}{together})"

    def _show(self, value: float, *, signed: bool = False) -> str:
        shown = self.metric.factor * value
        text = f"{shown:+.{self.metric.digits}f}" if signed else f"{shown:.3g}"
        return f"{text} points" if self.metric.unit == "%" else text


def _rest(half: float, other: float) -> float:
    """Return the half width that one source of noise may have beside that of the other; -1 if none."""
    return sqrt(half**2 - other**2) if half > other else -1.0


def _show_seeds(more: float) -> str:
    count = max(round(more), 1)
    return f"{count} more seed{'s' * (count > 1)}"
