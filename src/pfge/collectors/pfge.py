"""Parsimonious fast geometric ensembling (the paper's Algorithm 3; Guo, Jin, Liu, 2023)."""

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pfge.collectors.averaging import RunningMean
from pfge.collectors.base import Collector, Restart, require_cycle, require_whole
from pfge.collectors.stores import Store, open_store
from pfge.weights import Weights, keep_weights


class PFGE(Collector):
    """Run SWA one period after another: each period's mean is a member and the next start.

    Iterations j of a period are counted from its start w_0, which is the last member. A member is the mean
    of the period's start and of the weights at the end of each of its P / c cycles:

        member = (w_0 + w_c + w_2c + ... + w_P) / (P / c + 1)

    The member replaces the model's weights, so this collector steers: the path goes on from the average.
    One copy of the weights is kept while training, and each member as it is made.

    Args:
        cycle: Iterations between two averaged points (the paper's c).
        period: Iterations between two members (P).
        phase: Where in the cycle the averaged points lie: j mod cycle = phase, with j counted
            from the last restart.
        average_start: Whether each period's start counts once in its mean, as in the paper.
        clear_momentum: Whether the optimizer's state is dropped at each restart.
        store: A folder that takes the members as they are made, written by one process of a process group;
            main memory if None.

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

    def __init__(
        self,
        cycle: int,
        period: int,
        *,
        phase: int = 0,
        average_start: bool = True,
        clear_momentum: bool = True,
        store: Store | str | Path | None = None,
    ):
        require_cycle(cycle, phase)
        self.cycle = cycle
        self.period = period
        self.phase = phase
        self.average_start = average_start
        self.clear_momentum = clear_momentum
        self._require_period()
        self._store = open_store(store)
        self._mean: RunningMean | None = None

    @classmethod
    def reference(cls, cycle: int, period: int, *, store: Store | str | Path | None = None) -> "PFGE":
        """Return the rule of the authors' program; use it with `Triangular(..., start="high")`.

        Weights are taken at mid-cycle, where that schedule is low, and a period's start is not averaged.

        Args:
            cycle: Iterations between two averaged points.
            period: Iterations between two members.
            store: A folder that takes the members as they are made; main memory if None.

        Example:
            >>> from pfge import PFGE
            >>> PFGE.reference(cycle=4, period=8)
            PFGE(cycle=4, period=8, phase=2, average_start=False, clear_momentum=True)
        """
        return cls(cycle, period, phase=cycle // 2, average_start=False, clear_momentum=True, store=store)

    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:
        """Start without members (line 1: w = w0, S = {}, w_SWA = w, recorded = 0)."""
        self._store.begin(str(self))
        self._mean = RunningMean(weights, counted=self.average_start, copied=buffers)

    def due(self, iteration: int) -> bool:
        """Return whether a point is averaged or a member recorded."""
        return self._is_averaged(iteration) or iteration % self.period == 0

    def take(self, iteration: int, weights: Weights) -> Restart | None:
        """Average the weights at the end of a cycle; at the end of a period record the mean and go there."""
        if self._mean is None:
            raise RuntimeError(f"{self} must begin before it observes; call begin(weights) first")
        if self._is_averaged(iteration):  # lines 5-7: w_SWA = (w_SWA * (j/c) + w) / (j/c + 1)
            self._mean.add(weights)
        if iteration % self.period:  # line 8
            return None
        self._store.append(iteration, self._mean.weights())  # line 9: add w_SWA to S
        self._mean.restart(counted=self.average_start)
        return Restart(self._mean.weights(), self.clear_momentum)  # line 10: w = w_SWA

    def _is_averaged(self, iteration: int) -> bool:
        since_restart = (iteration - 1) % self.period + 1  # line 4: j = i - recorded * P
        return since_restart % self.cycle == self.phase

    def members(self) -> Sequence[Weights]:
        """Return the members so far, oldest first."""
        return self._store.members()

    def mean_so_far(self) -> Weights:
        """Return the mean of the period that is under way, or the newest member where one begins.

        Raises:
            ValueError: Nothing was averaged yet, so that the mean would be the start point.
        """
        if self._mean is None or not self._points():
            return super().mean_so_far()
        return keep_weights(self._mean.weights())

    def unfinished(self) -> str | None:
        """Return how much of the next member there is."""
        if not (points := self._points()):
            return None
        return f"{points} of the {len(self._averaged())} points of its next member"

    def _points(self) -> int:
        """Return how many points were averaged since the last restart."""
        return self._mean.count - self.average_start if self._mean else 0

    @property
    def iterations(self) -> Sequence[int | None]:
        """The iteration of each member so far."""
        return self._store.iterations

    def last_use(self, iterations: int) -> int:
        """Return the iteration of the last member; later iterations reach none."""
        return iterations // self.period * self.period

    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs."""
        return {"members": self._store.state_dict(), "mean": self._mean and self._mean.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._store.load_state_dict(state["members"])
        self._mean = state["mean"] and RunningMean.from_state(state["mean"])

    def _averaged(self) -> list[int]:
        """Return the iterations of a period that are averaged."""
        return [j for j in range(1, self.period + 1) if j % self.cycle == self.phase]

    def _require_period(self) -> None:
        require_whole(period=self.period)
        if self.period < 1:
            raise ValueError(f"period must be at least 1 iteration, got {self.period}")
        averaged = self._averaged()
        if not averaged:
            raise ValueError(
                f"period must reach the first averaged point, at {self.phase or self.cycle} iterations "
                f"with cycle={self.cycle} and phase={self.phase}, got period={self.period}"
            )
        if self.period % self.cycle:
            points = ", ".join(
                map(str, averaged if len(averaged) < 7 else [*averaged[:3], "...", averaged[-1]])
            )
            start = " and its start" if self.average_start else ""
            warnings.warn(
                f"period={self.period} is not a multiple of cycle={self.cycle}: each member averages "
                f"iterations {points} of its period{start}; the last {self.period - averaged[-1]} iterations "
                f"of each period are unused; choose a multiple of {self.cycle} to use them",
                stacklevel=3,
            )
