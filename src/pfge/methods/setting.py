"""What all methods of a comparison have in common."""

from dataclasses import dataclass
from typing import Literal

from pfge.schedules import Schedule, Triangular

Variant = Literal["paper", "reference"]


@dataclass(frozen=True)
class Setting:
    """What all methods of a comparison have in common, in iterations.

    Args:
        iterations: Updates that each method may spend (the paper's n).
        cycle: Iterations in a cycle of the learning rate (c).
        period: Iterations between two members of PFGE (P).
        low: The smallest learning rate (alpha1).
        high: The largest (alpha2).
        variant: "paper" takes weights at multiples of the cycle; "reference" at mid-cycle, as the
            authors' program does. In both the rate is lowest there.
        average_start: Whether a start point counts in its average; None is the variant's choice.
        clear_momentum: Whether PFGE restarts with a new optimizer.
        ema_decay: The share of the old mean that EMA keeps at each iteration.
        tail: The share of an annealing, at its end, that Star and Cosine average.
    """

    iterations: int
    cycle: int
    period: int
    low: float
    high: float
    variant: Variant = "paper"
    average_start: bool | None = None
    clear_momentum: bool = True
    ema_decay: float = 0.999
    tail: float = 0.1

    @property
    def phase(self) -> int:
        """Where in a cycle weights are taken."""
        return 0 if self.variant == "paper" else self.cycle // 2

    @property
    def members(self) -> int:
        """How many members PFGE makes."""
        return self.iterations // self.period

    @property
    def averages_start(self) -> bool:
        """Whether a start point counts in its average, by choice or by the variant."""
        return self.variant == "paper" if self.average_start is None else self.average_start

    def tail_of(self, annealing: int) -> int:
        """Return how many of the last iterations of an annealing are averaged, at least one."""
        return max(round(self.tail * annealing), 1)

    def schedule(self) -> Schedule:
        """Return the learning rate of the shared path: it rises and falls once a cycle."""
        start: Literal["low", "high"] = "low" if self.variant == "paper" else "high"
        return Triangular(self.cycle, self.low, self.high, start=start)
