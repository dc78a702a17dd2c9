"""A mean over seeds and test examples: its interval, and how many more of them would narrow it."""

from dataclasses import dataclass
from math import hypot, inf, sqrt

from scipy.special import stdtrit

CONFIDENCE = 0.95
MOST_SEEDS = 100
"""More seeds than these are not proposed."""


@dataclass(frozen=True, kw_only=True)
class NoisyMean:
    """A mean over seeds and test examples, with its interval.

    The two sources of noise, which test examples were drawn and which seeds were run, each have a half width
    by Student's t, and the interval is the mean and the square root of the sum of their squares to each side.

    Attributes:
        mean: Over seeds and examples.
        seeds: How many there are.
        seed_error: The standard error over seeds; None with one seed.
        examples: How many test examples there are; 0 if the run did not keep their scores.
        example_error: The standard error over test examples; None without their scores.
        step: The smallest difference between two scores, as 1 where an example is right or wrong; 0 if scores
            take any value.
        compared: How many differences the intervals hold for together (Bonferroni).
    """

    mean: float
    seeds: int = 1
    seed_error: float | None = None
    examples: int = 0
    example_error: float | None = None
    step: float = 0.0
    compared: int = 1

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the interval, of those sources of noise that are known; None if none is."""
        if self.seed_error is None and self.example_error is None:
            return None
        half = hypot(self.half_of_seeds(self.seeds), self.half_of_examples)
        return self.mean - half, self.mean + half

    @property
    def error(self) -> float:
        """The standard error over seeds and examples, as far as they are known."""
        return hypot(self.seed_error or 0.0, self.example_error or 0.0)

    @property
    def is_complete(self) -> bool:
        """Whether both sources of noise are known."""
        return self.seed_error is not None and self.example_error is not None

    @property
    def half_of_examples(self) -> float:
        """The half width from test examples.

        Where scores have steps, few examples may differ, or none, which does not mean that none ever would.
        So t^2 examples that differ by a step are added, as in Wilson's interval: with no difference among N
        examples the half width is t^2 / N steps, which is a little more than the rule of three says.
        """
        if self.example_error is None or self.examples < 2:
            return 0.0 if self.example_error is None else inf
        times = self._times_of_examples
        return times * hypot(self.example_error, times * self.step / self.examples)

    def half_of_seeds(self, seeds: int) -> float:
        """Return the half width from seeds, if there were so many of the same spread."""
        if self.seed_error is None:
            return 0.0
        spread = self.seed_error * sqrt(self.seeds)
        return float(-stdtrit(seeds - 1, self._outside)) * spread / sqrt(seeds)

    def more_seeds(self, half: float) -> float:
        """Return how many more seeds have a half width; infinity if they are too many to propose."""
        for more in range(MOST_SEEDS + 1):
            if self.half_of_seeds(self.seeds + more) <= half:
                return more
        return inf

    def more_examples(self, half: float) -> float:
        """Return how many more examples of the same spread have a half width, which is solved for 1 / N."""
        if half <= 0:
            return inf
        times = self._times_of_examples
        aim = (half / times) ** 2
        variance = (self.example_error or 0.0) ** 2 * self.examples
        added = times * self.step
        needed = (variance + sqrt(variance**2 + 4 * added**2 * aim)) / (2 * aim)
        return max(needed - self.examples, 0)

    @property
    def _times_of_examples(self) -> float:
        return float(-stdtrit(max(self.examples - 1, 1), self._outside))

    @property
    def _outside(self) -> float:
        return (1 - CONFIDENCE) / 2 / self.compared
