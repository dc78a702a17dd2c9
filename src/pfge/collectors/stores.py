"""Where a collector puts its members: in main memory, or on disk as they are made."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import distributed

from pfge.sharding import any_split, whole
from pfge.storage.ensemble_folder import EnsembleFolder
from pfge.storage.files import StorageError, only_writer
from pfge.storage.manifest import MANIFEST, prepare_for_overwrite, read_manifest
from pfge.weights import Weights, copy_weights, share_equal, to_cpu

PATIENCE = 300.0
"""Seconds that a process waits for members that another one writes."""


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
    return SharedFolderStore(Path(store)) if isinstance(store, str | Path) else store


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
        self._members.append(to_cpu(weights))
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
        self._members = share_equal([copy_weights(member) for member in state["members"]])


class FolderStore:
    """Members in an ensemble folder, which can be read while the run goes on.

    Args:
        path: The folder.
        overwrite: Whether a run that begins replaces members that are there. A loop that was killed after its
            first member and before its first checkpoint then begins again, and is not refused.

    Attributes:
        folder: The folder, with the members so far.
    """

    _overwriting = "FolderStore(path, overwrite=True)"

    def __init__(self, path: str | Path, *, overwrite: bool = False):
        prepare_for_overwrite(Path(path))
        self._overwrite = overwrite
        self.folder = EnsembleFolder(Path(path))

    @property
    def iterations(self) -> list[int | None]:
        """The iteration of each member so far."""
        return self.folder.iterations

    def begin(self, method: str) -> None:
        """Start a folder without members; one that has members is refused, unless it may be overwritten."""
        path = self.folder.path
        is_checked = not self._overwrite and (path / MANIFEST).exists()
        if is_checked and (found := len(EnsembleFolder.open(path).entries)):
            raise StorageError(
                f"{path} must be empty at the start of a run, but holds {found} members; resume from that "
                f"run's checkpoint, choose another folder, or give store={self._overwriting}"
            )
        self.folder = EnsembleFolder(path, method=method)
        with only_writer(path):
            self.folder.commit([])

    def append(self, iteration: int, weights: Weights) -> None:
        """Write the next member."""
        self.folder.append(to_cpu(weights) if any_split(weights) else weights, iteration)

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


class FollowerStore:
    """Count members that another process writes to a folder, and read them there.

    Args:
        path: The folder.
        overwrite: Whether the writer replaces members that are there when a run begins.
    """

    def __init__(self, path: Path, *, overwrite: bool = False):
        self._path = path
        self._overwrite = overwrite
        self.iterations: Sequence[int | None] = []
        self._resumed = 0
        self._manifest_before: tuple[int, int] | None = None

    def begin(self, method: str) -> None:  # noqa: ARG002 - the writer labels the folder
        """Start without members."""
        self.iterations = []
        # What is there may be of the run before, as after a resume.
        self._resumed, self._manifest_before = 0, self._version_of_manifest() if self._overwrite else None

    def append(self, iteration: int, weights: Weights) -> None:
        """Count a member, and give the writer this process's parts of it if it is split among processes."""
        for tensor in weights.values():
            whole(tensor)
        self.iterations = [*self.iterations, iteration]

    def members(self) -> Sequence[Weights]:
        """Return the members so far, after waiting until they are written.

        Raises:
            StorageError: They are not there after `PATIENCE` seconds.
        """
        expected = list(self.iterations)
        deadline = time.monotonic() + PATIENCE
        while (found := self._written()[: len(expected)]) != expected:
            if time.monotonic() > deadline:
                raise StorageError(
                    f"{self._path} must hold the members of iterations {expected}, which the process of rank "
                    f"0 writes, but holds those of {found} after {PATIENCE:g} s; use a folder that all "
                    "processes share, or store=FolderStore(path) where each trains a model of its own"
                )
            time.sleep(0.02)
        if not expected:
            return []
        return EnsembleFolder.open(self._path).members()[: len(expected)]

    def state_dict(self) -> dict[str, Any]:
        """Return which members there are; the folder holds them."""
        return {"iterations": list(self.iterations)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the members that the state knows; later ones will be made again."""
        self.iterations = list(state["iterations"])
        self._resumed, self._manifest_before = len(self.iterations), self._version_of_manifest()

    def _written(self) -> list[int | None]:
        """Return the iterations of the members that count by now."""
        version = self._version_of_manifest()
        if version is None:
            return []
        found = [member["iteration"] for member in read_manifest(self._path)["members"]]
        # Until the writer has replaced the manifest, later members are those of the run before.
        return found[: self._resumed] if version == self._manifest_before else found

    def _version_of_manifest(self) -> tuple[int, int] | None:
        try:
            status = (self._path / MANIFEST).stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns


class _SharedWriter(FolderStore):
    """The folder of the process that writes for all."""

    _overwriting = "pfge.collectors.stores.SharedFolderStore(path, overwrite=True)"


class SharedFolderStore:
    """Members in a folder that, in a process group, the process of rank 0 writes and all processes read.

    `store=path` is one that does not overwrite.

    Args:
        path: The folder, which all processes must see.
        overwrite: As in `FolderStore`.
    """

    def __init__(self, path: str | Path, *, overwrite: bool = False):
        self._path = Path(path)
        self._overwrite = overwrite
        self._store: Store = _SharedWriter(path, overwrite=overwrite)

    @property
    def iterations(self) -> Sequence[int | None]:
        """The iteration of each member so far."""
        return self._store.iterations

    def begin(self, method: str) -> None:
        """Start a folder without members; one that has members is refused, unless it may be overwritten."""
        self._choose()
        self._store.begin(method)

    def append(self, iteration: int, weights: Weights) -> None:
        """Write the next member, or count it."""
        self._store.append(iteration, weights)

    def members(self) -> Sequence[Weights]:
        """Return the members so far, each read when it is asked for."""
        return self._store.members()

    def state_dict(self) -> dict[str, Any]:
        """Return which members there are; the folder holds them."""
        return self._store.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the members that the state knows; later ones will be made again."""
        self._choose()
        self._store.load_state_dict(state)

    def _choose(self) -> None:
        # Not before training begins: trainers start their processes after the collector is constructed.
        grouped = distributed.is_available() and distributed.is_initialized()
        follows = grouped and distributed.get_rank() > 0
        kind = FollowerStore if follows else _SharedWriter
        self._store = kind(self._path, overwrite=self._overwrite)
