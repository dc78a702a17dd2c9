"""Independent members: each period starts from the same weights, and its last iterations are averaged."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pfge.collectors.averaging import RunningMean
from pfge.collectors.base import Collector, Restart
from pfge.collectors.stores import Store, open_store
from pfge.errors import InvalidValueError, MisuseError
from pfge.schedules import require_whole
from pfge.sharding import any_split, is_split, split_like
from pfge.weights import Weights, copy_weights, shared_part, to_cpu, without


class Star(Collector):
    """Record the mean of the last `tail` points of each period, and go back to the start.

    With w_i the weights after iteration i and P the period, member k is

        m_k = (1 / tail) * sum of w_i over i = k P - tail + 1, ..., k P

    and after it the trajectory goes on from the start point, with a new optimizer. Use it with a rate that
    falls once a period, `CosineRestarts(period, low, high)`, so that a period ends at a low rate.

    No period depends on another, so members are less alike than those of PFGE, whose periods go on from each
    other. Each period has to come back from the highest rate by itself: give it time for that. With
    `period` equal to the number of iterations there is one member: the tail of one annealing, averaged.

    Args:
        period: Iterations between two members.
        tail: How many of a period's last points are averaged; 1 takes the last one as it is.
        clear_momentum: Whether a period starts with a new optimizer. Only then are periods independent.
        store: A folder that takes the members as they are made; main memory if None.

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
        require_whole(period=period, tail=tail)
        if period < 1:
            raise InvalidValueError(f"period must be at least 1 iteration, got {period}")
        if not 1 <= tail <= period:
            raise InvalidValueError(f"tail must be from 1 to all {period} iterations of a period, got {tail}")
        self.period = period
        self.tail = tail
        self.averages = tail > 1
        self.clear_momentum = clear_momentum
        self._store = open_store(store)
        self._start: Weights | None = None
        self._mean: RunningMean | None = None

    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:
        """Keep the start point, without members."""
        self._store.begin(str(self))
        self._start = _keep_parts(weights)
        self._mean = RunningMean(weights, counted=False, copied=buffers)

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
        self._store.append(iteration, self._mean.weights())
        self._mean.restart(counted=False)
        if any_split(weights):  # a checkpoint has it whole
            self._start = {name: split_like(weights[name], tensor) for name, tensor in self._start.items()}
        return Restart(self._start, self.clear_momentum)

    def members(self) -> Sequence[Weights]:
        """Return the members so far, oldest first."""
        return self._store.members()

    def mean_so_far(self) -> Weights:
        """Return the mean of the tail that is under way, or the newest member outside of a tail.

        Raises:
            ValueError: There is neither.
        """
        if self._mean is None or not self._mean.count:
            return super().mean_so_far()
        return to_cpu(self._mean.weights())

    def pending_description(self) -> str | None:
        """Return how much of the next member there is."""
        points = self._mean.count if self._mean else 0
        return f"{points} of the {self.tail} points of its next member" if points else None

    @property
    def iterations(self) -> Sequence[int | None]:
        """The iteration of each member so far."""
        return self._store.iterations

    def last_used_iteration(self, iterations: int) -> int:
        """Return the iteration of the last member; later iterations reach none."""
        return iterations // self.period * self.period

    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs."""
        return {
            "members": self._store.state_dict(),
            "start": self._start,
            "mean": self._mean and self._mean.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state.

        Raises:
            ValueError: The state has no start point, which every period needs.
        """
        if state.get("start") is None and state["mean"] is not None:
            raise InvalidValueError(
                f"{self} restarts from its start point, which this state has lost; begin the run again"
            )
        self._store.load_state_dict(state["members"])
        self._start = state["start"] and _keep_parts(state["start"])
        self._mean = state["mean"] and RunningMean.from_state(state["mean"])


def _keep_parts(weights: Weights) -> Weights:
    """Return a copy that is split among processes as the weights are."""
    parts = {name: tensor.detach().clone() for name, tensor in weights.items() if is_split(tensor)}
    kept = parts | shared_part(weights)
    kept |= copy_weights(without(weights, kept))
    return {name: kept[name] for name in weights}
