"""Where a collector puts its members: in main memory, or on disk as they are made."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from pfge.storage.atomic_files import only_writer
from pfge.storage.ensemble_folder import EnsembleFolder
from pfge.storage.files import StorageError
from pfge.storage.manifest import MANIFEST, prepare_for_overwrite
from pfge.weights import Weights, copy_weights


class Store(Protocol):
    """Members in the order in which they were made."""

    @property
    def iterations(self) -> Sequence[int | None]:
        """The iteration of each member so far."""

    def begin(self, method: str) -> None:
        """Start a new run."""

    def append(self, iteration: int, weights: Weights) -> None:
        """Keep a copy of the weights as the next member."""

    def members(self) -> Sequence[Weights]:
        """Return the members so far."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the members that the state knows."""


def open_store(store: Store | str | Path | None) -> Store:
    """Return a store in a folder, in main memory if there is none, or the user's own."""
    if store is None:
        return MemoryStore()
    return FolderStore(Path(store)) if isinstance(store, str | Path) else store


class MemoryStore:
    """Members in main memory, whatever the device of the model."""

    def __init__(self) -> None:
        self.iterations: Sequence[int | None] = []
        self._members: list[Weights] = []

    def begin(self, method: str) -> None:  # noqa: ARG002 - only a folder has a label
        """Start without members."""
        self.iterations, self._members = [], []

    def append(self, iteration: int, weights: Weights) -> None:
        """Keep a copy of the weights as the next member."""
        self._members.append(copy_weights(weights, "cpu"))
        self.iterations = [*self.iterations, iteration]

    def members(self) -> list[Weights]:
        """Return the members so far."""
        return list(self._members)

    def state_dict(self) -> dict[str, Any]:
        """Return the members themselves: they are nowhere else."""
        return {"iterations": list(self.iterations), "members": self._members}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with these members."""
        self.iterations = list(state["iterations"])
        self._members = [copy_weights(member) for member in state["members"]]


class FolderStore:
    """Members in an ensemble folder, which can be read while the run goes on.

    Attributes:
        folder: The folder, with the members so far.
    """

    def __init__(self, path: Path):
        prepare_for_overwrite(path)
        self.folder = EnsembleFolder(path)

    @property
    def iterations(self) -> list[int | None]:
        """The iteration of each member so far."""
        return self.folder.iterations

    def begin(self, method: str) -> None:
        """Start a folder without members; one that has members is refused, not overwritten."""
        path = self.folder.path
        if (path / MANIFEST).exists() and (found := len(EnsembleFolder.open(path).entries)):
            raise StorageError(
                f"{path} must be empty at the start of a run, but holds {found} members; "
                "resume from that run's checkpoint, or choose another folder"
            )
        self.folder = EnsembleFolder(path, method=method)
        with only_writer(path):
            self.folder.commit([])

    def append(self, iteration: int, weights: Weights) -> None:
        """Write the next member."""
        self.folder.append(weights, iteration)

    def members(self) -> Sequence[Weights]:
        """Return the members so far, each read when it is asked for."""
        return self.folder.members()

    def state_dict(self) -> dict[str, Any]:
        """Return which members there are; the folder holds them."""
        return {"iterations": self.iterations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the members that the state knows; later ones will be made again."""
        folder = EnsembleFolder.open(self.folder.path)
        known = list(state["iterations"])
        if folder.iterations[: len(known)] != known:
            raise StorageError(
                f"{folder.path} must hold the members of iterations {known}, as the checkpoint does, "
                f"but holds those of {folder.iterations}; use the folder of that run"
            )
        folder.entries = folder.entries[: len(known)]
        self.folder = folder
