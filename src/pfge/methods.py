"""Methods by name: which collector each needs, and which share a trajectory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pfge.collectors import EMA, FGE, PFGE, SWA, SWAG, Collector
from pfge.collectors.stores import Store
from pfge.schedules import CosineRestarts, Schedule, Triangular

PAPER = ("SWA", "FGE", "SWAG", "PFGE")
METHODS = (*PAPER, "EMA", "Snapshot")
"""Those that collect weights along a path."""
LISTENERS = ("SWA", "FGE", "SWAG", "EMA")
"""They only watch, so one trajectory serves them all; PFGE bends its own, Snapshot has other rates."""

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

    @property
    def phase(self) -> int:
        """Where in a cycle weights are taken."""
        return 0 if self.variant == "paper" else self.cycle // 2

    @property
    def members(self) -> int:
        """How many members PFGE makes."""
        return self.iterations // self.period

    def schedule(self, name: str = "PFGE") -> Schedule:
        """Return the learning rate of a method: one for all but Snapshot, which anneals once a period."""
        if name == "Snapshot":
            return CosineRestarts(self.period, self.low, self.high)
        start: Literal["low", "high"] = "low" if self.variant == "paper" else "high"
        return Triangular(self.cycle, self.low, self.high, start=start)


def make_collector(
    name: str, setting: Setting, *, seed: int = 0, store: Store | str | Path | None = None
) -> Collector:
    """Return the collector of a method.

    Args:
        name: One of `METHODS`.
        setting: What the methods share.
        seed: For methods that sample.
        store: A folder for the members of methods that make them one by one.
    """
    cycle, phase = setting.cycle, setting.phase
    average_start = setting.average_start
    if average_start is None:
        average_start = setting.variant == "paper"
    match name:
        case "SWA":
            return SWA(cycle, phase=phase, average_start=average_start)
        case "FGE":
            return FGE(cycle, phase=phase, store=store)
        case "SWAG":
            # As many samples as FGE has members, so that the two are compared at equal memory.
            points = max((setting.iterations - (phase or cycle)) // cycle + 1, 1)
            return SWAG(cycle, phase=phase, samples=points, seed=seed)
        case "PFGE":
            return PFGE(
                cycle,
                setting.period,
                phase=phase,
                average_start=average_start,
                clear_momentum=setting.clear_momentum,
                store=store,
            )
        case "EMA":
            return EMA(setting.ema_decay)
        case "Snapshot":
            return FGE(setting.period, store=store)
    raise ValueError(f"there is no method {name!r}; choose from {', '.join(METHODS)}")
