"""The members, for all processes except the one that writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pfge.storage.ensemble_folder import EnsembleFolder
from pfge.weights import Weights


class FollowerStore:
    """Count members that another process writes to a folder, and read them there."""

    def __init__(self, path: Path):
        self._path = path
        self.iterations: Sequence[int | None] = []

    def begin(self, method: str) -> None:  # noqa: ARG002
        """Start without members."""
        self.iterations = []

    def append(self, iteration: int, weights: Weights) -> None:  # noqa: ARG002
        """Count a member."""
        self.iterations = [*self.iterations, iteration]

    def members(self) -> Sequence[Weights]:
        """Return the members that are in the folder by now."""
        return EnsembleFolder.open(self._path).members()

    def state_dict(self) -> dict[str, Any]:
        """Return which members there are."""
        return {"iterations": list(self.iterations)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the members that the state knows."""
        self.iterations = list(state["iterations"])
