"""Fast geometric ensembling (the paper's Algorithm 2; Garipov et al., 2018)."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pfge.collectors.base import Collector, require_cycle
from pfge.collectors.stores import Store, open_store
from pfge.weights import Weights


class FGE(Collector):
    """Keep the weights at the end of every cycle, each as a member: w_c, w_2c, w_3c, ...

    With a `CosineRestarts` schedule these are the snapshots of a snapshot ensemble. The start point is not a
    member.

    Args:
        cycle: Iterations between two members (the paper's c).
        phase: Where in the cycle they lie: at iterations i with i mod cycle = phase.
        store: A folder that takes the members as they are made, written by one process of a process group;
            main memory if None.

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
        self.cycle = cycle
        self.phase = phase
        self._store = open_store(store)

    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:  # noqa: ARG002
        """Start without members: w0 is none of them."""
        self._store.begin(str(self))

    def due(self, iteration: int) -> bool:
        """Return whether a point of the cycle is reached."""
        return iteration % self.cycle == self.phase

    def collect(self, iteration: int, weights: Weights) -> None:
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
