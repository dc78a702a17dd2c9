"""The definition of a method, and the training plan that methods share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pfge.collectors import Collector
from pfge.collectors.stores import Store
from pfge.errors import InvalidValueError
from pfge.schedules import Schedule, Triangular

Variant = Literal["paper", "reference"]


@dataclass(frozen=True)
class TrainingPlan:
    """The settings that all methods of a comparison share; lengths are in iterations.

    Args:
        iterations: Updates that each method may spend (the paper's n).
        cycle: Iterations in a cycle of the learning rate (c).
        period: Iterations between two members of PFGE (P).
        low: The smallest learning rate (alpha1).
        high: The largest learning rate (alpha2).
        variant: "paper" collects at multiples of the cycle, where its rate is lowest; "reference" at
            mid-cycle, as the authors' program does, one iteration before its rate is lowest.
        average_start: Whether a start point counts in its average; None is the variant's choice.
        clear_momentum: Whether PFGE restarts with a new optimizer.
        ema_decay: Fraction of the old mean that EMA keeps at each iteration.
        tail: Fraction of an annealing, at its end, that Star and Cosine average.
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
        """The position in a cycle at which weights are collected."""
        return 0 if self.variant == "paper" else self.cycle // 2

    @property
    def members(self) -> int:
        """The number of members that PFGE makes."""
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


CollectorFactory = Callable[[TrainingPlan, int, Store | str | Path | None], Collector]
TAKEN_NAMES = ("w0", "shared", "pretrain")
"""Names that a run folder has for rows and files of its own."""


@dataclass(frozen=True)
class Method:
    """One way to make an ensemble.

    Args:
        name: Its name in configs, tables and folders: ASCII letters, digits and underscores.
        description: One line about what it does.
        source: The publication.
        path: Origin of its weights. "shared": its collector only watches, at the rates of
            `TrainingPlan.schedule`, so one trajectory serves all such methods. "own": its collector steers,
            or it has other rates. "trainings": each member has a training of its own, as w0 has. "start": w0
            with dropout left on; nothing is trained or saved. "augmented": the one model of another method,
            `base`, on images that are shifted and mirrored; nothing is trained or saved.
        collector: Returns a new collector from a plan, a seed (for methods that sample) and a store (for
            members that are made one by one). Required for a shared or own path.
        schedule: Returns the learning rate of its path.
        members: The members of its path: "one", a mean; one each "cycle"; or one each "period". None if they
            are not points of a path.
        periods_are_independent: Whether every period starts from w0 with a new optimizer. Then each can be
            trained by a process of its own.
        averages: Whether it keeps a running mean of weights while it trains.
        base: Name of the method whose one model it uses.
        starred: Whether its last members, as many as the reference has, have a row of their own (`FGE*`).
        least_cycles: The smallest number of cycles of an experiment.
        default: Whether a comparison runs it unless the config names its methods.
        reference: Whether the others are compared with it, which only one method can be.
        curves: Whether `pfge connect` fits curves from each member to the next.
        far_apart: Whether its members differ too much to be stored as small differences from a base.
        plan: "listed" if `pfge plan` lists it, which needs `members`; "recommended" if it may also choose it,
            because it had the lowest NLL at a temperature among listed methods with as many forward passes,
            each at its own rate, in docs/mnist1d.md. None if neither.

    Raises:
        ValueError: The name cannot be one, or the path does not go with the collector.
    """

    name: str
    description: str
    source: str
    path: Literal["shared", "own", "trainings", "start", "augmented"]
    collector: CollectorFactory | None = None
    schedule: Callable[[TrainingPlan], Schedule] = TrainingPlan.schedule
    members: Literal["one", "cycle", "period"] | None = None
    periods_are_independent: bool = False
    averages: bool = False
    base: str = ""
    starred: bool = False
    least_cycles: int = 1
    default: bool = False
    reference: bool = False
    curves: bool = False
    far_apart: bool = False
    plan: Literal["listed", "recommended"] | None = None

    def __post_init__(self) -> None:
        if not (self.name.isidentifier() and self.name.isascii()) or self.name.lower() in TAKEN_NAMES:
            raise InvalidValueError(
                f"a method's name must have ASCII letters, digits and underscores only, and must not be one "
                f"of {', '.join(TAKEN_NAMES)}, got {self.name!r}"
            )
        if (self.collector is not None) != (self.path in ("shared", "own")):
            raise InvalidValueError(
                f"a method needs a collector if its path is 'shared' or 'own', and must not have one "
                f"otherwise, got path={self.path!r} and collector={self.collector!r} for {self.name}"
            )

    @property
    def saved(self) -> bool:
        """Whether its ensemble is saved: False if it only uses the one model of another row."""
        return self.path not in ("start", "augmented")

    def forks(self, plan: TrainingPlan) -> bool:
        """Return whether its path is the shared one up to its first restart."""
        return self.path == "own" and self.schedule(plan) == plan.schedule()
