"""The difference between two predictors with its uncertainty, over examples or over seeds."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from pfge.errors import InvalidValueError
from pfge.metrics.scores import ExampleScores

AnyScores = TypeVar("AnyScores", bound=ExampleScores)
_DRAWN_AT_ONCE = 2**20  # 8 MB of example numbers


@dataclass(frozen=True)
class Difference:
    """The first minus the second, with an interval that tells how much another test set would change it.

    Attributes:
        mean: The difference of the means, or of the statistic, over all examples.
        low: The lower end of the interval.
        high: The upper end.

    Example:
        >>> from pfge.metrics import Difference
        >>> Difference(mean=0.02, low=-0.01, high=0.05).within_noise
        True
    """

    mean: float
    low: float
    high: float

    @property
    def within_noise(self) -> bool:
        """Whether the interval contains 0."""
        return self.low <= 0 <= self.high


@dataclass(frozen=True)
class SeedDifference:
    """The first minus the second over runs of the same seeds.

    An interval is the mean and some standard errors to each side: for 95 %, Student's t says 4.3 with 3
    seeds, 2.8 with 5, 2.3 with 10.

    Attributes:
        mean: The mean difference.
        standard_error: Its standard error.
        seeds: How many seeds there are.

    Example:
        >>> from pfge.metrics import SeedDifference
        >>> found = SeedDifference(mean=2.0, standard_error=0.5, seeds=3)
        >>> found.mean - 4.3 * found.standard_error < 0  # an interval of 95 % contains 0
        True
    """

    mean: float
    standard_error: float
    seeds: int


def paired_bootstrap(
    first: Tensor, second: Tensor, *, samples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> Difference:
    """Return the difference of two means over the same examples, with its percentile interval.

    Sets of N examples are drawn with replacement, the same ones for both predictors, and the interval holds
    the middle `confidence` of the differences of their means.

    Args:
        first: A number for each example, as a log loss or 1 for a right prediction, [N].
        second: The same of the other predictor.
        samples: How many sets of N examples are drawn, with replacement.
        confidence: The share of the drawn differences that lie in the interval.
        seed: Decides what is drawn.

    References:
        Efron, "Bootstrap Methods: Another Look at the Jackknife", The Annals of Statistics, 1979.
        Efron, Tibshirani, "An Introduction to the Bootstrap", Chapman & Hall, 1993.

    Example:
        Which of four examples two predictors get right. One more is within noise:

        >>> import torch
        >>> from pfge.metrics import paired_bootstrap
        >>> first, second = torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 0.0, 1.0])
        >>> found = paired_bootstrap(first, second)
        >>> found.mean, found.low, found.within_noise
        (0.25, 0.0, True)
    """
    if first.ndim != 1 or first.shape != second.shape:
        raise InvalidValueError(
            f"both predictors need a number for each of the same examples, got {list(first.shape)} and "
            f"{list(second.shape)}"
        )
    difference = first.detach().to("cpu", torch.float64) - second.detach().to("cpu", torch.float64)
    (found,) = paired_bootstraps(difference[:, None], samples=samples, confidence=confidence, seed=seed)
    return found


def paired_bootstraps(
    differences: Tensor, *, samples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> list[Difference]:
    """Return the mean of each column with its percentile interval; one draw of examples serves them all.

    Args:
        differences: A row for each example, a column for each pair of predictors, [N, M].
        samples: How many sets of N examples are drawn, with replacement.
        confidence: The share of the drawn means that lie in the interval.
        seed: Decides what is drawn.

    Example:
        >>> import torch
        >>> from pfge.metrics import paired_bootstraps
        >>> differences = torch.tensor([[0.0, 0.5], [1.0, 0.5], [0.0, 0.5], [0.0, 0.5]])
        >>> first, second = paired_bootstraps(differences)
        >>> first.mean, first.within_noise
        (0.25, True)
        >>> second
        Difference(mean=0.5, low=0.5, high=0.5)
    """
    if not bool(differences.isfinite().all()):
        raise InvalidValueError("the numbers of examples must be finite, got NaN or infinite ones")
    examples = len(differences)
    # How often each example was drawn, times its numbers: far cheaper than to look them up for each column.
    drawn = [
        torch.stack([row.bincount(minlength=examples) for row in chosen]).to(differences) @ differences
        for chosen in _draw(examples, samples, seed)
    ]
    columns = zip(differences.mean(0).tolist(), (torch.cat(drawn) / examples).T, strict=True)
    return [_interval(mean, column, confidence) for mean, column in columns]


def paired_bootstrap_of(
    statistic: Callable[[AnyScores], float],
    first: AnyScores,
    second: AnyScores,
    *,
    samples: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
) -> Difference:
    """Return the difference of a statistic that is not a mean over examples, such as a calibration error.

    A calibration error of drawn examples is on average higher than that of all, for both predictors, so
    the interval need not be centered on the difference.

    Args:
        statistic: Such as `Scores.expected_calibration_error`.
        first: The scores of each example.
        second: The scores of the same examples by the other predictor.
        samples: How many sets of examples are drawn; the statistic is computed twice for each.
        confidence: The share of the drawn differences that lie in the interval.
        seed: Decides what is drawn.

    References:
        Efron, Tibshirani, "An Introduction to the Bootstrap", Chapman & Hall, 1993.

    Example:
        >>> import torch
        >>> from pfge.metrics import Scores, paired_bootstrap_of, score_examples
        >>> targets = torch.tensor([0, 0, 1, 1])
        >>> sure = score_examples(torch.tensor([[1.0, 0.0]] * 2 + [[0.0, 1.0]] * 2), targets)
        >>> unsure = score_examples(torch.tensor([[0.75, 0.25]] * 2 + [[0.25, 0.75]] * 2), targets)
        >>> paired_bootstrap_of(Scores.expected_calibration_error, unsure, sure)
        Difference(mean=0.25, low=0.25, high=0.25)
    """
    if len(first) != len(second):
        raise InvalidValueError(
            f"both scores must be of the same examples, got {len(first)} and {len(second)}"
        )
    drawn = [
        statistic(first.take(row)) - statistic(second.take(row))
        for chosen in _draw(len(first), samples, seed)
        for row in chosen
    ]
    whole = statistic(first) - statistic(second)
    return _interval(whole, torch.tensor(drawn, dtype=torch.float64), confidence)


def seed_difference(first: Sequence[float], second: Sequence[float]) -> SeedDifference:
    """Return the mean difference over paired seeds with its standard error.

        standard error = s / sqrt(n),    s^2 = sum over seeds of (d - mean)^2 / (n - 1)

    for the differences d of n seeds. Pairing removes what runs of a seed share, such as their start.

    Args:
        first: A metric of each run.
        second: The same metric of the other method, of runs with the same seeds in the same order.

    References:
        Student, "The Probable Error of a Mean", Biometrika, 1908.

    Example:
        Differences of 1, 2 and 3 have a mean of 2 and a standard error of 1 / sqrt(3):

        >>> from pfge.metrics import seed_difference
        >>> found = seed_difference([93.0, 95.0, 94.0], [92.0, 93.0, 91.0])
        >>> found.mean, round(found.standard_error, 4), found.seeds
        (2.0, 0.5774, 3)
    """
    if len(first) != len(second):
        raise InvalidValueError(
            f"both methods need runs of the same seeds, got {len(first)} and {len(second)}"
        )
    seeds = len(first)
    if seeds < 2:
        raise InvalidValueError(f"a standard error needs at least two seeds, got {seeds}")
    differences = [one - other for one, other in zip(first, second, strict=True)]
    mean = math.fsum(differences) / seeds
    variance = math.fsum((difference - mean) ** 2 for difference in differences) / (seeds - 1)
    return SeedDifference(mean, math.sqrt(variance / seeds), seeds)


def _draw(examples: int, samples: int, seed: int) -> Iterator[Tensor]:
    """Yield the numbers of the drawn examples, a row for each sample, some rows at a time."""
    if not examples:
        raise InvalidValueError("a bootstrap needs at least one example, got none")
    if samples < 1:
        raise InvalidValueError(f"samples must be at least 1, got {samples}")
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, _DRAWN_AT_ONCE // examples)
    for done in range(0, samples, rows):
        yield torch.randint(examples, (min(rows, samples - done), examples), generator=generator)


def _interval(mean: float, drawn: Tensor, confidence: float) -> Difference:
    if not 0 < confidence < 1:
        raise InvalidValueError(f"confidence must be between 0 and 1, got {confidence}")
    outside = (1 - confidence) / 2
    low, high = drawn.quantile(drawn.new_tensor([outside, 1 - outside])).tolist()
    return Difference(mean, low, high)
