"""A steering collector that listens on a shared trajectory until its own path leaves it."""

from collections.abc import Collection, Sequence
from typing import Any

from pfge.collectors import Collector, Restart
from pfge.trajectory import Trajectory
from pfge.weights import Weights


class Fork(Collector):
    """Observe for a collector that restarts, up to its first restart, which is recorded and not carried out.

    Until PFGE's first restart its path is that of the listeners, so one run serves them all; from
    there a second trajectory continues with the state that `state` gives.

    Args:
        collector: The one that restarts.
        is_recorded: Whether its first restart was recorded before. Then the collector is not used at all,
            because the second trajectory may be under way.
    """

    def __init__(self, collector: Collector, *, is_recorded: bool = False):
        self.collector = collector
        self._restart: Restart | None = None
        self._is_recorded = is_recorded
        self._left = is_recorded

    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:
        """Begin the collector."""
        if not self._is_recorded:
            self.collector.begin(weights, buffers)

    def due(self, iteration: int) -> bool:
        """Return whether the collector needs these weights; it needs none after its first restart."""
        return not self._left and self.collector.due(iteration)

    def take(self, iteration: int, weights: Weights) -> None:
        """Pass the weights to the collector, and record its first restart."""
        self._restart = self.collector.observe(iteration, weights)
        self._left = self._restart is not None

    def state(self, shared: Trajectory) -> dict[str, Any] | None:
        """Return the state from which a second trajectory starts, if the shared one has just reached it."""
        if self._restart is None:
            return None
        restart, self._restart = self._restart, None
        state = shared.state_dict()
        optimizer = state["optimizer"]
        if restart.clear_momentum:
            optimizer = {**optimizer, "state": {}}
        collectors = [[str(self.collector), self.collector.state_dict()]]
        return {**state, "weights": restart.weights, "optimizer": optimizer, "collectors": collectors}

    def members(self) -> Sequence[Weights]:
        """Return the members that the collector has so far."""
        return self.collector.members()

    @property
    def iterations(self) -> Sequence[int | None]:
        """The iteration of each of them."""
        return self.collector.iterations

    def last_use(self, iterations: int) -> int:
        """Return the collector's own answer: the second trajectory uses the rest."""
        return self.collector.last_use(iterations)

    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs."""
        return {"left": self._left, "collector": self.collector.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        if not self._is_recorded:
            self._left = state["left"]
            self.collector.load_state_dict(state["collector"])

    def __repr__(self) -> str:
        return f"Fork({self.collector})"
