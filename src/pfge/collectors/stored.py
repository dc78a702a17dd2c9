"""Collectors that keep one member after another in a store: FGE, PFGE and Star."""

import warnings
from abc import abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pfge.collectors.averaging import RunningMean
from pfge.collectors.base import Collector, Restart, constructor_call, require_cycle
from pfge.collectors.stores import Store, open_store
from pfge.errors import InvalidValueError, MisuseError
from pfge.schedules import require_whole
from pfge.sharding import any_split, is_split, split_like
from pfge.weights import Weights, copy_weights, shared_part, to_cpu, without


class _StoredCollector(Collector):
    """A collector that puts members into a store as they are made."""

    def __init__(self, store: Store | str | Path | None):
        self._store = open_store(store)

    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:  # noqa: ARG002
        """Start without members: the start point is not a member."""
        self._store.begin(str(self))

    def members(self) -> Sequence[Weights]:
        """Return the members so far, oldest first."""
        return self._store.members()

    @property
    def iterations(self) -> Sequence[int | None]:
        """The iteration of each member so far."""
        return self._store.iterations

    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs."""
        return self._store.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._store.load_state_dict(state)


class _PeriodCollector(_StoredCollector):
    """A collector whose members are means of weights in one period after another."""

    def __init__(self, period: int, store: Store | str | Path | None, *, average_start: bool):
        require_whole(period=period)
        if period < 1:
            raise InvalidValueError(f"period must be at least 1 iteration, got {period}")
        super().__init__(store)
        self.period = period
        self.average_start = average_start
        self._mean: RunningMean | None = None

    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:
        """Start without members, with the mean of the first period (Algorithm 3, line 1)."""
        super().begin(weights, buffers)
        self._mean = RunningMean(weights, counted=self.average_start, copied=buffers)

    def mean_so_far(self) -> Weights:
        """Return the mean of the current period, or the newest member if the period has no points yet.

        Raises:
            ValueError: Nothing was averaged yet, so the mean would be the start point.
        """
        if self._mean is None or not self._points():
            return super().mean_so_far()
        return to_cpu(self._mean.weights())

    def pending_description(self) -> str | None:
        """Return how many points of the next member were averaged."""
        if not (points := self._points()):
            return None
        return f"{points} of the {self._points_of_next_member()} points of its next member"

    @abstractmethod
    def _points_of_next_member(self) -> int:
        """Return how many points are averaged in the current period."""

    def last_used_iteration(self, iterations: int) -> int:
        """Return the iteration of the last member; no member uses later iterations."""
        return iterations // self.period * self.period

    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs."""
        return {"members": self._store.state_dict(), "mean": self._mean and self._mean.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._store.load_state_dict(state["members"])
        self._mean = state["mean"] and RunningMean.from_state(state["mean"])

    def _points(self) -> int:
        """Return how many points were averaged since the last restart."""
        return self._mean.count - self.average_start if self._mean else 0

    def _record(self, iteration: int, mean: RunningMean) -> None:
        """Put the mean into the store, and start the mean of the next period."""
        self._store.append(iteration, mean.weights())
        mean.restart(counted=self.average_start)


class FGE(_StoredCollector):
    """Keep the weights at the end of every cycle, each as a member: w_c, w_2c, w_3c, ...

    With a `CosineRestarts` schedule these are the snapshots of a snapshot ensemble. The start point is not a
    member.

    Args:
        cycle: Iterations between two members (the paper's c).
        phase: Position in the cycle at which they are kept: iterations i with i mod cycle = phase.
        store: Folder for the members, or a `FolderStore`; None keeps them in main memory.

    References:
        Garipov et al., "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs", NeurIPS 2018.
        Huang et al., "Snapshot Ensembles: Train 1, Get M for Free", ICLR 2017.
        Guo, Jin, Liu, "PFGE: Parsimonious Fast Geometric Ensembling of DNNs", ICIC 2023, Algorithm 2.

    Example:
        >>> import torch
        >>> from pfge import FGE
        >>> collector = FGE(cycle=2)
        >>> collector.begin({"w": torch.tensor(0.0)})
        >>> for iteration in range(1, 5):
        ...     collector.observe(iteration, {"w": torch.tensor(3.0 * iteration)})
        >>> collector.members(), collector.iterations
        ([{'w': tensor(6.)}, {'w': tensor(12.)}], [2, 4])
    """

    def __init__(self, cycle: int, *, phase: int = 0, store: Store | str | Path | None = None):
        require_cycle(cycle, phase)
        super().__init__(store)
        self.cycle = cycle
        self.phase = phase

    def due(self, iteration: int) -> bool:
        """Return whether a point of the cycle is reached."""
        return iteration % self.cycle == self.phase

    def collect(self, iteration: int, weights: Weights) -> None:
        """Keep the weights as a member."""
        self._store.append(iteration, weights)


class PFGE(_PeriodCollector):
    """Run SWA one period after another: each period's mean is a member and the next start.

    Iterations j of a period are counted from its start w_0, which is the last member. A member is the mean
    of the period's start and of the weights at the end of each of its P / c cycles:

        member = (w_0 + w_c + w_2c + ... + w_P) / (P / c + 1)

    The member replaces the model's weights, so this collector steers: the path goes on from the average.
    One copy of the weights is kept while training, and each member as it is made.

    Args:
        cycle: Iterations between two averaged points (the paper's c).
        period: Iterations between two members (P).
        phase: Position in the cycle at which points are averaged: j mod cycle = phase, with j counted
            from the last restart.
        average_start: Whether each period's start counts once in its mean, as in the paper.
        clear_momentum: Whether the optimizer's state is dropped at each restart.
        cycles_restart: Whether a restart begins a new cycle, as in the paper. If False, cycles are counted
            from the start of training, i mod cycle = phase, as in the authors' program. This differs only
            if `period` is not a multiple of `cycle`.
        store: Folder for the members, or a `FolderStore`; None keeps them in main memory.

    References:
        Guo, Jin, Liu, "PFGE: Parsimonious Fast Geometric Ensembling of DNNs", ICIC 2023, Algorithm 3.

    Example:
        The mean of the start 0 and of the points 6 and 12, at the ends of two cycles:

        >>> import torch
        >>> from pfge import PFGE
        >>> collector = PFGE(cycle=2, period=4)
        >>> collector.begin({"w": torch.tensor(0.0)})
        >>> for iteration in range(1, 5):
        ...     restart = collector.observe(iteration, {"w": torch.tensor(3.0 * iteration)})
        >>> collector.members(), collector.iterations
        ([{'w': tensor(6.)}], [4])
        >>> restart.weights["w"]
        tensor(6.)
    """

    steers: ClassVar[bool] = True
    averages = True

    def __init__(
        self,
        cycle: int,
        period: int,
        *,
        phase: int = 0,
        average_start: bool = True,
        clear_momentum: bool = True,
        cycles_restart: bool = True,
        store: Store | str | Path | None = None,
    ):
        require_cycle(cycle, phase)
        super().__init__(period, store, average_start=average_start)
        self.cycle = cycle
        self.phase = phase
        self.clear_momentum = clear_momentum
        self.cycles_restart = cycles_restart
        self._require_period()

    @classmethod
    def reference(cls, cycle: int, period: int, *, store: Store | str | Path | None = None) -> "PFGE":
        """Return the rule of the authors' program; use it with `Triangular(..., start="high")`.

        Weights are collected at mid-cycle, one iteration before that schedule is lowest, and a period's start
        is not averaged. A restart does not begin a new cycle: with a period of 10 epochs and a cycle of 4,
        the first member is the mean of the weights after epochs 2, 6 and 10, and the second of those after
        epochs 14 and 18.

        Args:
            cycle: Iterations between two averaged points.
            period: Iterations between two members.
            store: Folder for the members, or a `FolderStore`; None keeps them in main memory.

        Example:
            >>> from pfge import PFGE
            >>> PFGE.reference(cycle=4, period=8)
            PFGE(cycle=4, period=8, phase=2, average_start=False, clear_momentum=True, cycles_restart=False)
        """
        return cls(cycle, period, phase=cycle // 2, average_start=False, cycles_restart=False, store=store)

    def __repr__(self) -> str:
        names = ["cycle", "period", "phase", "average_start", "clear_momentum"]
        # Manifests and checkpoints name it only where it is not the paper's.
        names += [] if self.cycles_restart else ["cycles_restart"]
        return constructor_call(self, names)

    def due(self, iteration: int) -> bool:
        """Return whether a point is averaged or a member recorded."""
        return self._is_averaged(iteration) or iteration % self.period == 0

    def collect(self, iteration: int, weights: Weights) -> Restart | None:
        """Average the weights at the end of a cycle; at the end of a period record the mean and go there."""
        if self._mean is None:
            raise MisuseError(f"{self} must begin before it observes; call begin(weights) first")
        if self._is_averaged(iteration):  # lines 5-7: w_SWA = (w_SWA * (j/c) + w) / (j/c + 1)
            self._mean.add(weights)
        if iteration % self.period:  # line 8
            return None
        self._record(iteration, self._mean)  # line 9: add w_SWA to S
        return Restart(self._mean.weights(), self.clear_momentum)  # line 10: w = w_SWA

    def needs_low_rate(self, iteration: int) -> bool:
        """Return whether the weights are averaged here, and not only a member recorded."""
        return self._is_averaged(iteration)

    def _is_averaged(self, iteration: int) -> bool:
        since_restart = (iteration - 1) % self.period + 1  # line 4: j = i - recorded * P
        counted = since_restart if self.cycles_restart else iteration
        return counted % self.cycle == self.phase

    def _points_of_next_member(self) -> int:
        """Return how many points the current period averages."""
        return len(self._averaged(len(self.iterations)))

    def _averaged(self, recorded: int = 0) -> list[int]:
        """Return the iterations that are averaged in the period after so many members."""
        start = recorded * self.period
        return [i for i in range(start + 1, start + self.period + 1) if self._is_averaged(i)]

    def _require_period(self) -> None:
        averaged = self._averaged()
        if not averaged:
            raise InvalidValueError(
                f"period must reach the first averaged point, at {self.phase or self.cycle} iterations "
                f"with cycle={self.cycle} and phase={self.phase}, got period={self.period}"
            )
        if not self.cycles_restart and self.period < self.cycle:
            raise InvalidValueError(
                f"period must be at least cycle={self.cycle} where cycles go on over restarts, or some "
                f"periods average nothing, got period={self.period}"
            )
        if self.period % self.cycle:
            warnings.warn(
                f"period={self.period} is not a multiple of cycle={self.cycle}: {self._uneven()}; choose a "
                f"multiple of {self.cycle} to use them",
                stacklevel=3,
            )

    def _uneven(self) -> str:
        """Return what is averaged if the period is not a multiple of the cycle."""
        first, second = self._averaged(), self._averaged(1)
        start = " and its start" if self.average_start else ""
        if self.cycles_restart:
            return (
                f"each member averages iterations {_shorten(first)} of its period{start}; the last "
                f"{self.period - first[-1]} iterations of each period are unused"
            )
        return (
            f"the first member averages iterations {_shorten(first)}{start}, the second {_shorten(second)}, "
            "and so on, as cycles go on over restarts; the last iterations of some periods are unused"
        )


def _shorten(iterations: list[int]) -> str:
    shown = iterations if len(iterations) < 7 else [*iterations[:3], "...", iterations[-1]]
    return ", ".join(map(str, shown))


class Star(_PeriodCollector):
    """Record the mean of the last `tail` points of each period, and go back to the start.

    With w_i the weights after iteration i and P the period, member k is

        m_k = (1 / tail) * sum of w_i over i = k P - tail + 1, ..., k P

    and after it the trajectory goes on from the start point, with a new optimizer. Use it with a rate that
    falls once a period and is low at its end: `CosineRestarts(period, low, high)`.

    No period depends on another, so members are less alike than those of PFGE, whose periods go on from each
    other. Each period has to come back from the highest rate by itself: give it time for that. With
    `period` equal to the number of iterations there is one member: the tail of one annealing, averaged.

    Args:
        period: Iterations between two members.
        tail: Number of points at the end of a period that are averaged; 1 keeps the last one as it is.
        clear_momentum: Whether a period starts with a new optimizer. Only then are periods independent.
        store: Folder for the members, or a `FolderStore`; None keeps them in main memory.

    References:
        Sadrtdinov et al., "To Stay or Not to Stay in the Pre-train Basin: Insights on Ensembling in Transfer
        Learning", NeurIPS 2023 (StarSSE: restarting every period from the pretrained weights).

    Example:
        >>> import torch
        >>> from pfge.collectors import Star
        >>> collector = Star(period=3, tail=2)
        >>> collector.begin({"w": torch.tensor(0.0)})
        >>> for iteration in range(1, 7):
        ...     restart = collector.observe(iteration, {"w": torch.tensor(10.0 * iteration)})
        >>> collector.members(), collector.iterations
        ([{'w': tensor(25.)}, {'w': tensor(55.)}], [3, 6])
        >>> restart.weights
        {'w': tensor(0.)}
    """

    steers = True

    def __init__(
        self,
        period: int,
        *,
        tail: int = 1,
        clear_momentum: bool = True,
        store: Store | str | Path | None = None,
    ):
        super().__init__(period, store, average_start=False)
        require_whole(tail=tail)
        if not 1 <= tail <= period:
            raise InvalidValueError(f"tail must be from 1 to all {period} iterations of a period, got {tail}")
        self.tail = tail
        self.averages = tail > 1
        self.clear_momentum = clear_momentum
        self._start: Weights | None = None

    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:
        """Keep the start point, without members."""
        super().begin(weights, buffers)
        self._start = _keep_parts(weights)

    def due(self, iteration: int) -> bool:
        """Return whether the iteration is in the tail of its period."""
        return (iteration - 1) % self.period >= self.period - self.tail

    def collect(self, iteration: int, weights: Weights) -> Restart | None:
        """Average the weights; at the end of a period record the mean and go back to the start."""
        if self._mean is None or self._start is None:
            raise MisuseError(f"{self} must begin before it observes; call begin(weights) first")
        self._mean.add(weights)
        if iteration % self.period:
            return None
        self._record(iteration, self._mean)
        if any_split(weights):  # a checkpoint has it whole
            self._start = {name: split_like(weights[name], tensor) for name, tensor in self._start.items()}
        return Restart(self._start, self.clear_momentum)

    def _points_of_next_member(self) -> int:
        """Return the length of the tail."""
        return self.tail

    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs."""
        state = super().state_dict()
        return {"members": state["members"], "start": self._start, "mean": state["mean"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state.

        Raises:
            ValueError: The state has no start point, which every period needs.
        """
        if state.get("start") is None and state["mean"] is not None:
            raise InvalidValueError(
                f"the state of {self} has lost the start point, from which each period restarts; begin the "
                "run again"
            )
        super().load_state_dict(state)
        self._start = state["start"] and _keep_parts(state["start"])


def _keep_parts(weights: Weights) -> Weights:
    """Return a copy that is split among processes as the weights are."""
    parts = {name: tensor.detach().clone() for name, tensor in weights.items() if is_split(tensor)}
    kept = parts | shared_part(weights)
    kept |= copy_weights(without(weights, kept))
    return {name: kept[name] for name in weights}
