"""What SWA and EMA share: a single mean that is the only member."""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from pfge.collectors.base import Collector
from pfge.collectors.running_mean import RunningMean
from pfge.weights import Weights, copy_weights


class OneMean(Collector):
    """A collector whose only member is one mean of the weights.

    Args:
        average_start: Whether the start point counts in the mean.
    """

    def __init__(self, *, average_start: bool):
        self.average_start = average_start
        self._mean: RunningMean | None = None
        self._last: int | None = None

    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:
        """Take note of the start point."""
        self._mean = RunningMean(weights, counted=self.average_start, copied=buffers)
        self._last = None

    def _take(self, iteration: int, weights: Weights) -> None:
        if self._mean is None:
            raise RuntimeError(f"{self} must begin before it observes; call begin(weights) first")
        self._update(self._mean, weights)
        self._last = iteration

    @abstractmethod
    def _update(self, mean: RunningMean, weights: Weights) -> None:
        """Let the weights join the mean."""

    def members(self) -> Sequence[Weights]:
        """Return the mean as the only member.

        Raises:
            ValueError: Nothing was averaged yet, so that the mean would be the start point.
        """
        if self._mean is None or self._last is None:
            raise ValueError(f"{self} has averaged nothing yet; train on until an iteration that is due")
        return [copy_weights(self._mean.weights(), "cpu")]

    @property
    def iterations(self) -> Sequence[int | None]:
        """The iteration of the last point in the mean."""
        return [] if self._last is None else [self._last]

    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs."""
        return {"last": self._last, "mean": self._mean and self._mean.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._last = state["last"]
        self._mean = state["mean"] and RunningMean.from_state(state["mean"])
