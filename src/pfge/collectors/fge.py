"""Fast geometric ensembling (the paper's Algorithm 2; Garipov et al., 2018)."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pfge.collectors.base import Collector, require_cycle
from pfge.collectors.stores import Store, open_store
from pfge.weights import Weights


class FGE(Collector):
    """Keeps the weights at the end of every cycle, each as a member.

    With a `CosineRestarts` schedule these are the snapshots of a snapshot ensemble.

    Args:
        cycle: Iterations between two members (the paper's c).
        phase: Where in the cycle they lie: at iterations i with i mod cycle = phase.
        store: A folder that takes the members as they are made; main memory if None.
    """

    def __init__(self, cycle: int, *, phase: int = 0, store: Store | str | Path | None = None):
        require_cycle(cycle, phase)
        self.cycle = cycle
        self.phase = phase
        self._store = open_store(store)

    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:  # noqa: ARG002
        """Start without members: w0 is none of them."""
        self._store.begin(str(self))

    def due(self, iteration: int) -> bool:
        """Tell whether a point of the cycle is reached."""
        return iteration % self.cycle == self.phase

    def take(self, iteration: int, weights: Weights) -> None:
        """Keep the weights as a member."""
        self._store.append(iteration, weights)

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
