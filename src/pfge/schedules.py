"""Learning rates as pure values: `rate = schedule(iteration)`, iterations counting from 1.

Any function of the iteration is a schedule. Those here are values: they can be compared, printed and used
anywhere in a run, as they have no state.

Example:
    >>> from pfge.schedules import Schedule
    >>> warm_up: Schedule = lambda iteration: 0.5 * min(iteration / 4, 1.0)
    >>> [warm_up(i) for i in range(1, 6)]
    [0.125, 0.25, 0.375, 0.5, 0.5]
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from numbers import Real
from operator import index
from typing import Literal

from torch.optim.lr_scheduler import LRScheduler

from pfge.errors import InvalidTypeError, InvalidValueError

__all__ = [
    "Constant",
    "CosineRestarts",
    "Joined",
    "LinearDecay",
    "Schedule",
    "Triangular",
    "pretraining_schedule",
]

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    """The same rate at every iteration.

    Args:
        rate: The learning rate.

    Example:
        >>> from pfge.schedules import Constant
        >>> Constant(0.05)(1000)
        0.05
    """

    rate: float

    def __post_init__(self) -> None:
        _require_rates(self.rate, self.rate)

    def __call__(self, iteration: int) -> float:  # noqa: ARG002
        """Return the rate."""
        return self.rate


@dataclass(frozen=True)
class Triangular:
    """A rate that goes linearly up and down once a cycle.

    At iteration i of cycles of c iterations, with the distance to the nearest multiple of c as a share of
    half a cycle, d(i) = 2 min(i mod c, -i mod c) / c:

        rate(i) = low * (1 - d(i)) + high * d(i)                with start="low"
        rate(i) = high * (1 - d(i - 1)) + low * d(i - 1)        with start="high"

    Weights are best collected where the rate is low. That is at multiples of the cycle with `start="low"`,
    where every collector here collects by default, and at mid-cycle with `start="high"`.

    Args:
        cycle: Iterations in one cycle (the paper's c).
        low: The smallest rate (alpha1).
        high: The largest rate (alpha2).
        start: "low" ends every cycle at `low`, as in the paper. "high" begins every cycle at `high`, as FGE's
            program and the PFGE authors' program do. It reaches `low` one iteration after mid-cycle,
            where these programs collect.

    References:
        Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017.
        Garipov et al., "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs", NeurIPS 2018.
        Guo, Jin, Liu, "PFGE: Parsimonious Fast Geometric Ensembling of DNNs", ICIC 2023, Figure 1.

    Example:
        >>> from pfge.schedules import Triangular
        >>> schedule = Triangular(cycle=4, low=1.0, high=3.0)
        >>> [schedule(i) for i in range(1, 9)]
        [2.0, 3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]
        >>> reference = Triangular(cycle=4, low=1.0, high=3.0, start="high")
        >>> [reference(i) for i in range(1, 9)]
        [3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0, 2.0]
    """

    cycle: int
    low: float
    high: float
    start: Literal["low", "high"] = "low"

    def __post_init__(self) -> None:
        _require_cycle(self.cycle)
        _require_rates(self.low, self.high)
        if self.start not in ("low", "high"):
            raise InvalidValueError(f"start must be 'low' or 'high', got {self.start!r}")

    def __call__(self, iteration: int) -> float:
        """Return the rate at an iteration."""
        position = iteration if self.start == "low" else iteration - 1
        from_multiple = 2 * min(position % self.cycle, -position % self.cycle) / self.cycle  # 0..1
        share_of_high = from_multiple if self.start == "low" else 1 - from_multiple
        # Two products rather than low + share * (high - low): both ends come out exact.
        return self.low * (1 - share_of_high) + self.high * share_of_high


@dataclass(frozen=True)
class CosineRestarts:
    """A rate that falls along half a cosine and jumps back, for snapshot ensembles.

    At iteration i, the j-th of its cycle of c iterations, j = (i - 1) mod c + 1:

        rate(i) = low + (high - low) * (1 + cos(pi * j / c)) / 2

    It reaches `low` exactly at every multiple of the cycle, where `FGE(cycle)` takes a snapshot.

    Args:
        cycle: Iterations in one cycle.
        low: The rate at the end of each cycle.
        high: The rate that each cycle falls from.

    References:
        Loshchilov, Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017.
        Huang et al., "Snapshot Ensembles: Train 1, Get M for Free", ICLR 2017.

    Example:
        >>> from pfge.schedules import CosineRestarts
        >>> schedule = CosineRestarts(cycle=4, low=0.0, high=2.0)
        >>> [round(schedule(i), 3) for i in range(1, 7)]
        [1.707, 1.0, 0.293, 0.0, 1.707, 1.0]
    """

    cycle: int
    low: float
    high: float

    def __post_init__(self) -> None:
        _require_cycle(self.cycle)
        _require_rates(self.low, self.high)

    def __call__(self, iteration: int) -> float:
        """Return the rate at an iteration."""
        progress = ((iteration - 1) % self.cycle + 1) / self.cycle
        share_of_high = (1 + cos(pi * progress)) / 2
        return self.low * (1 - share_of_high) + self.high * share_of_high


@dataclass(frozen=True)
class LinearDecay:
    """A rate that goes linearly from `first` to `last`, and stays there.

        rate(i) = first + (last - first) * min(i / iterations, 1)

    Args:
        iterations: Number of iterations until `last` is reached.
        first: The rate before the first iteration.
        last: The rate from iteration `iterations` on. It may be the larger one.

    Example:
        >>> from pfge.schedules import LinearDecay
        >>> schedule = LinearDecay(iterations=4, first=1.0, last=0.0)
        >>> [schedule(i) for i in range(1, 7)]
        [0.75, 0.5, 0.25, 0.0, 0.0, 0.0]
    """

    iterations: int
    first: float
    last: float

    def __post_init__(self) -> None:
        require_whole(iterations=self.iterations)
        if self.iterations < 1:
            raise InvalidValueError(f"iterations must be at least 1, got {self.iterations}")
        _require_rates(self.first, max(self.first, self.last))
        _require_rates(self.last, max(self.first, self.last))

    def __call__(self, iteration: int) -> float:
        """Return the rate at an iteration."""
        progress = min(iteration / self.iterations, 1.0)
        return self.first * (1 - progress) + self.last * progress


@dataclass(frozen=True)
class Joined:
    """Schedules one after another, each counting its own iterations from 1.

    Args:
        parts: Pairs of a schedule and how many iterations it lasts. The last schedule does not end.

    Example:
        >>> from pfge.schedules import Constant, Joined, LinearDecay
        >>> schedule = Joined(((Constant(1.0), 2), (LinearDecay(2, first=1.0, last=0.5), 2)))
        >>> [schedule(i) for i in range(1, 6)]
        [1.0, 1.0, 0.75, 0.5, 0.5]
    """

    parts: tuple[tuple[Schedule, int], ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise InvalidValueError(
                "parts must hold at least one (schedule, iterations) pair, got an empty tuple"
            )
        for schedule, iterations in self.parts:
            require_whole(iterations=iterations)
            if iterations < 0:
                raise InvalidValueError(f"iterations must not be negative, got {iterations} for {schedule}")

    def __call__(self, iteration: int) -> float:
        """Return the rate at an iteration."""
        for schedule, iterations in self.parts[:-1]:
            if iteration <= iterations:
                return schedule(iteration)
            iteration -= iterations
        return self.parts[-1][0](iteration)


def pretraining_schedule(iterations: int, rate: float) -> Joined:
    """Return the paper's schedule for w0: constant for a half, then linear to 0.01 of the rate at 90 %.

    Args:
        iterations: Number of iterations of the whole pretraining.
        rate: Learning rate of its first half.

    References:
        Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", UAI 2018.
        Guo, Jin, Liu, "PFGE: Parsimonious Fast Geometric Ensembling of DNNs", ICIC 2023.

    Example:
        >>> from pfge.schedules import pretraining_schedule
        >>> schedule = pretraining_schedule(iterations=10, rate=1.0)
        >>> [round(schedule(i), 4) for i in range(4, 11)]
        [1.0, 1.0, 0.7525, 0.505, 0.2575, 0.01, 0.01]
    """
    require_whole(iterations=iterations)
    half = iterations // 2
    decay = max(iterations * 9 // 10 - half, 1)
    return Joined(((Constant(rate), half), (LinearDecay(decay, rate, 0.01 * rate), decay)))


def require_schedule(schedule: Schedule | None) -> None:
    """Raise a TypeError unless this is a function, or None for rates that are left alone."""
    if schedule is None or callable(schedule):
        return
    kind = type(schedule).__name__
    if isinstance(schedule, LRScheduler):
        remedy = "pass schedule=None to keep it in your loop"
    else:
        remedy = "for example Constant(0.05)"
    raise InvalidTypeError(
        f"schedule must be a function of the iteration, such as Triangular, got {kind}; {remedy}"
    )


def require_whole(**counts: int) -> None:
    """Raise a ValueError unless these counts of iterations, given by name, are integers."""
    for name, count in counts.items():
        try:
            index(count)  # integers of numpy are integers too
        except TypeError:
            raise InvalidValueError(
                f"{name} must be a whole number of iterations, got {count!r}; round it to an int"
            ) from None


def _require_cycle(cycle: int) -> None:
    require_whole(cycle=cycle)
    if cycle < 1:
        raise InvalidValueError(f"cycle must be at least 1 iteration, got {cycle}")


def _require_rates(low: float, high: float) -> None:
    if not all(isinstance(rate, Real) for rate in (low, high)):
        raise InvalidTypeError(f"rates must be numbers, got {low!r} and {high!r}; pass floats, such as 0.05")
    if not 0 <= low <= high < float("inf"):
        raise InvalidValueError(
            f"rates must satisfy 0 <= low <= high, got low={low} and high={high}; exchange or correct them"
        )
