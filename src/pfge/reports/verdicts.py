"""A difference between two methods in one metric: its interval, its verdict, and what would decide it."""

from dataclasses import dataclass
from math import ceil, floor, hypot, inf, log10, sqrt
from typing import Literal

from scipy.special import stdtrit

from pfge.tasks import Metric

Verdict = Literal["better", "worse", "equal", "undecided"]
CONFIDENCE = 0.95
MOST_SEEDS = 100
"""More seeds than these are not proposed."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A method minus the reference in one metric.

    The two sources of noise, which test examples were drawn and which seeds were run, each have a half width
    by Student's t, and the interval is the mean and the square root of the sum of their squares to each side.

    Attributes:
        metric: Which.
        mean: The difference, mean over the seeds that both have.
        margin: The largest difference that does not matter, in the unit of the results.
        reference: The metric of the reference, mean over the same seeds.
        seeds: How many seeds both have.
        seed_error: The standard error over seeds; None with one seed.
        examples: How many test examples there are; 0 if the run did not keep their scores.
        example_error: The standard error over test examples; None without their scores.
        counts: Whether an example is either right or wrong, so that few of them may differ.
        compared: How many methods are compared, for all of which the intervals hold together (Bonferroni).
        called: What the examples are called.
    """

    metric: Metric
    mean: float
    margin: float
    reference: float = 0.0
    seeds: int = 1
    seed_error: float | None = None
    examples: int = 0
    example_error: float | None = None
    counts: bool = False
    compared: int = 1
    called: str = "images"

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the interval, of those sources of noise that are known; None if none is."""
        if self.seed_error is None and self.example_error is None:
            return None
        half = hypot(self._half_of_seeds(self.seeds), self._half_of_examples)
        return self.mean - half, self.mean + half

    @property
    def error(self) -> float:
        """The standard error over seeds and examples, as far as they are known."""
        return hypot(self.seed_error or 0.0, self.example_error or 0.0)

    @property
    def verdict(self) -> Verdict:
        """What the interval allows to say; undecided unless it is of seeds and of examples."""
        if self.interval is None or not self._is_complete:
            return "undecided"
        low, high = self.interval
        if -self.margin <= low and high <= self.margin:
            return "equal"
        if self._is_one_way(low, high):
            return "better" if self.loss < 0 else "worse"
        return "undecided"

    @property
    def is_no_worse(self) -> bool:
        """Whether the whole interval is better than the reference, or worse by less than the margin."""
        if self.interval is None or not self._is_complete:
            return False
        return all(self._change(end) <= self.margin for end in self.interval)

    @property
    def loss(self) -> float:
        """A number that is below 0 where the difference is for the better."""
        return self._change(self.mean)

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
        # The interval must be one way, or lie within the margin: whichever is nearer.
        half = max(self._reach, self.margin - abs(self.mean))
        of_seeds, of_examples = self._half_of_seeds(self.seeds), self._half_of_examples
        ways = []
        if half > of_examples and (more := self._more_seeds(sqrt(half**2 - of_examples**2))):
            ways.append(f"about {more}")
        if half > of_seeds:
            ways.append(f"about {self._more_examples(sqrt(half**2 - of_seeds**2))}")
        if not ways and half > 0 and (more := self._more_seeds(half / sqrt(2))):
            ways.append(f"about {more} and {self._more_examples(half / sqrt(2))}")
        return ", or ".join(ways) or f"more than {MOST_SEEDS} seeds"

    def __str__(self) -> str:
        shown = f"{self._show(self.mean, signed=True)}{self._noise()}: {self.in_words}"
        return f"{shown}; to decide: {self.missing}" if self.missing else shown

    @property
    def _is_complete(self) -> bool:
        return self.seed_error is not None and self.example_error is not None

    @property
    def _outside(self) -> float:
        return (1 - CONFIDENCE) / 2 / self.compared

    def _half_of_seeds(self, seeds: int) -> float:
        """Return the half width from seeds, if there were so many of the same spread."""
        if self.seed_error is None:
            return 0.0
        spread = self.seed_error * sqrt(self.seeds)
        return float(-stdtrit(seeds - 1, self._outside)) * spread / sqrt(seeds)

    @property
    def _half_of_examples(self) -> float:
        """The half width from test examples.

        Where they are right or wrong, few may differ, or none, which does not mean that none ever would. So
        t^2 examples that differ are added, as in Wilson's interval: with no difference among N examples the
        half width is t^2 / N, which is a little more than the rule of three says.
        """
        if self.example_error is None or self.examples < 2:
            return 0.0 if self.example_error is None else inf
        times = self._times_of_examples
        return times * hypot(self.example_error, times / self.examples if self.counts else 0.0)

    @property
    def _times_of_examples(self) -> float:
        return float(-stdtrit(max(self.examples - 1, 1), self._outside))

    def _more_seeds(self, half: float) -> str:
        for seeds in range(self.seeds + 1, self.seeds + MOST_SEEDS + 1):
            if self._half_of_seeds(seeds) <= half:
                more = seeds - self.seeds
                return f"{more} more seed{'s' * (more > 1)}"
        return ""

    def _more_examples(self, half: float) -> str:
        """Return how many more examples of the same spread have a half width, which is solved for 1 / N."""
        times = self._times_of_examples
        aim = (half / times) ** 2
        variance = (self.example_error or 0.0) ** 2 * self.examples
        added = times if self.counts else 0.0
        needed = (variance + sqrt(variance**2 + 4 * added**2 * aim)) / (2 * aim)
        more = max(needed - self.examples, 1)
        step = 10 ** max(floor(log10(more)) - 1, 0)  # two digits say as much as is known
        return f"{ceil(more / step) * step:,} more test {self.called}"

    def _is_one_way(self, low: float, high: float) -> bool:
        """Return whether every difference of an interval is for the better, or every one for the worse.

        Where closer is better, a difference that may lead past the aim to the other side can be both.
        """
        changes = self._change(low), self._change(high)
        return max(changes) < 0 or (min(changes) > 0 and (low > 0 or high < 0))

    @property
    def _reach(self) -> float:
        """The distance from the mean to the nearest difference that is neither better nor worse."""
        if self.metric.better != "closer":
            return abs(self.mean)
        # As far from the aim as the reference is, on the other side of the aim.
        mirrored = 2 * ((self.metric.aim or 0.0) - self.reference)
        return min(abs(self.mean), abs(self.mean - mirrored))

    def _change(self, difference: float) -> float:
        """Return a number that is below 0 where a difference is for the better."""
        if self.metric.better != "closer":
            return self.metric.penalty(difference)  # exact, as the sign decides
        return self.metric.penalty(self.reference + difference) - self.metric.penalty(self.reference)

    def _noise(self) -> str:
        if self.interval is None:
            return ""
        digits = self.metric.digits
        low, high = (f"{self.metric.factor * end:+.{digits}f}" for end in self.interval)
        sources = [f"test {self.called}"] if self.example_error is not None else []
        sources.append("one seed" if self.seeds == 1 else f"{self.seeds} seeds")
        together = f", {self.compared} methods together" if self.compared > 1 else ""
        return f" (95 % interval {low} to {high} over {' and '.join(sources)}{together})"

    def _show(self, value: float, *, signed: bool = False) -> str:
        shown = self.metric.factor * value
        text = f"{shown:+.{self.metric.digits}f}" if signed else f"{shown:.3g}"
        return f"{text} points" if self.metric.unit == "%" else text
