"""Learning rates as pure values: `rate = schedule(iteration)`, iterations counting from 1."""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from typing import Literal

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
"""Any function of the iteration, from 1, is a schedule; those below are values that can be compared."""


@dataclass(frozen=True)
class Constant:
    """The same rate at every iteration."""

    rate: float

    def __post_init__(self) -> None:
        _require_rates(self.rate, self.rate)

    def __call__(self, iteration: int) -> float:  # noqa: ARG002
        """Return the rate."""
        return self.rate


@dataclass(frozen=True)
class Triangular:
    """A rate that goes linearly up and down once a cycle.

    Args:
        cycle: Iterations in one cycle (the paper's c).
        low: The smallest rate (alpha1).
        high: The largest rate (alpha2).
        start: "low" has `low` at every multiple of the cycle, as in the paper;
            "high" has `high` there and `low` at mid-cycle, as in FGE's program.
    """

    cycle: int
    low: float
    high: float
    start: Literal["low", "high"] = "low"

    def __post_init__(self) -> None:
        _require_cycle(self.cycle)
        _require_rates(self.low, self.high)
        if self.start not in ("low", "high"):
            raise ValueError(f"start must be 'low' or 'high', got {self.start!r}")

    def __call__(self, iteration: int) -> float:
        """Return the rate at an iteration."""
        from_multiple = 2 * min(iteration % self.cycle, -iteration % self.cycle) / self.cycle  # 0..1
        share_of_high = from_multiple if self.start == "low" else 1 - from_multiple
        # Two products rather than low + share * (high - low): both ends come out exact.
        return self.low * (1 - share_of_high) + self.high * share_of_high


@dataclass(frozen=True)
class CosineRestarts:
    """A rate that falls along half a cosine and jumps back, for snapshot ensembles.

    It starts near `high` and reaches `low` exactly at every multiple of the cycle.

    Args:
        cycle: Iterations in one cycle.
        low: The smallest rate.
        high: The rate that each cycle falls from.
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
    """A rate that goes linearly from `first` to `last` over `iterations`, and stays there."""

    iterations: int
    first: float
    last: float

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {self.iterations}")
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
        parts: Pairs of a schedule and how many iterations it lasts; the last one goes on for ever.
    """

    parts: tuple[tuple[Schedule, int], ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("parts must hold at least one (schedule, iterations) pair, got none")
        for schedule, iterations in self.parts:
            if iterations < 0:
                raise ValueError(f"iterations must not be negative, got {iterations} for {schedule}")

    def __call__(self, iteration: int) -> float:
        """Return the rate at an iteration."""
        for schedule, iterations in self.parts[:-1]:
            if iteration <= iterations:
                return schedule(iteration)
            iteration -= iterations
        return self.parts[-1][0](iteration)


def pretraining_schedule(iterations: int, rate: float) -> Joined:
    """Return the paper's recipe for w0: constant for a half, then linear to 0.01 of it at 90 %."""
    half = iterations // 2
    decay = max(iterations * 9 // 10 - half, 1)
    return Joined(((Constant(rate), half), (LinearDecay(decay, rate, 0.01 * rate), decay)))


def _require_cycle(cycle: int) -> None:
    if cycle < 1:
        raise ValueError(f"cycle must be at least 1 iteration, got {cycle}")


def _require_rates(low: float, high: float) -> None:
    if not 0 <= low <= high < float("inf"):
        raise ValueError(
            f"rates must satisfy 0 <= low <= high, got low={low} and high={high}; exchange or correct them"
        )
