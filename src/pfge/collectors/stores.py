"""Where a collector puts its members: in main memory, or on disk as they are made."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from torch import distributed

from pfge.errors import MisuseError
from pfge.sharding import any_split, whole
from pfge.storage.ensemble_folder import MANIFEST, EnsembleFolder, prepare_for_overwrite, read_manifest
from pfge.storage.files import StorageError, make_folder, only_writer, sync_folder
from pfge.storage.record import EnsembleRecord
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
        """Continue after the members of the state."""


def open_store(store: Store | str | Path | None) -> Store:
    """Return a store in main memory for None, in a folder for a path; a store is returned as it is."""
    if store is None:
        return MemoryStore()
    return FolderStore(store) if isinstance(store, str | Path) else store


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
        """Return the members themselves, which no file has."""
        return {"iterations": list(self.iterations), "members": self._members}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the members of the state."""
        self.iterations = list(state["iterations"])
        self._members = share_equal([copy_weights(member) for member in state["members"]])


class FolderStore:
    """Members in an ensemble folder, which can be read while the run goes on.

    In a process group, the process of rank 0 writes the folder. The others count members, and read the
    folder when they are asked for them. `store=path` is a store without options.

    Args:
        path: The folder. All processes must see it.
        overwrite: Whether a run that begins replaces existing members. A loop that was killed after its
            first member and before its first checkpoint then begins again instead of being refused.
        writes: Whether this process writes the folder; None for rank 0 only. Pass True if each process
            trains a model of its own, with a folder for each.
        finish: Changes the weights of a member before they are written. Every process calls it.
        final: Folder that `save` moves the members to.

    Attributes:
        iterations: The iteration of each member so far.

    Example:
        A loop that may begin again replaces the members of the run before:

        >>> import tempfile, torch, pfge
        >>> folder = tempfile.mkdtemp()
        >>> for attempt in (1, 2):
        ...     store = pfge.collectors.FolderStore(folder, overwrite=True)
        ...     collector = pfge.FGE(cycle=1, store=store)
        ...     collector.begin({"w": torch.tensor(0.0)})
        ...     collector.observe(1, {"w": torch.tensor(float(attempt))})
        >>> [member["w"].item() for member in collector.members()]
        [2.0]
    """

    def __init__(
        self,
        path: str | Path,
        *,
        overwrite: bool = False,
        writes: bool | None = None,
        finish: Callable[[Weights], Weights] | None = None,
        final: Path | None = None,
    ):
        self.iterations: Sequence[int | None] = []
        self._path = Path(path)
        self._overwrite = overwrite
        self._writes = writes
        self._finish = finish
        self._final = final
        self._is_writer = writes is not False
        self._folder: EnsembleFolder | None = None  # of the writer: its entries are known without reading
        self._resumed = 0
        self._manifest_before: tuple[int, int] | None = None
        if self._is_writer:
            prepare_for_overwrite(self._path)

    def begin(self, method: str) -> None:
        """Start a folder without members.

        Raises:
            StorageError: The folder has members, and may not be overwritten.
        """
        self._choose_role()
        self.iterations = []
        if self._is_writer:
            self._begin_folder(method)
        # What is there may be of the run before, as after a resume.
        self._resumed, self._manifest_before = 0, self._version_of_manifest() if self._overwrite else None

    def append(self, iteration: int, weights: Weights) -> None:
        """Write the next member, or count it in a process that does not write.

        Every process gives the writer its parts of tensors that are split among processes.
        """
        finished = self._finish(weights) if self._finish else weights
        if self._is_writer:
            if self._folder is None:
                raise MisuseError("a store must begin before it takes members; call begin(method) first")
            self._folder.append(to_cpu(finished) if any_split(finished) else finished, iteration)
        else:
            for tensor in finished.values():
                whole(tensor)
        self.iterations = [*self.iterations, iteration]

    def members(self) -> Sequence[Weights]:
        """Return the members so far, each read when it is asked for.

        A process that does not write waits until they are written.

        Raises:
            StorageError: They are not there after `PATIENCE` seconds.
        """
        if self._is_writer and self._folder is not None:
            return self._folder.members()
        expected = list(self.iterations)
        deadline = time.monotonic() + PATIENCE
        while (found := self._written()[: len(expected)]) != expected:
            if time.monotonic() > deadline:
                raise StorageError(
                    f"{self._path} must hold the members of iterations {expected}, which the process of rank "
                    f"0 writes, but holds those of {found} after {PATIENCE:g} s; use a folder that all "
                    "processes see, or store=pfge.collectors.FolderStore(path, writes=True) if each trains a "
                    "model of its own"
                )
            time.sleep(0.02)
        return EnsembleFolder.open(self._current_path()).members()[: len(expected)] if expected else []

    def state_dict(self) -> dict[str, Any]:
        """Return the iterations of the members, which the folder holds."""
        return {"iterations": list(self.iterations)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the members of the state; later ones will be made again.

        Raises:
            StorageError: The folder does not hold the members of the state.
        """
        self._choose_role()
        known = list(state["iterations"])
        if self._is_writer and not self._is_saved():  # members are saved only after the last one was made
            self._folder = self._open_with(known)
        self.iterations = known
        self._resumed, self._manifest_before = len(known), self._version_of_manifest()

    def save(self, record: EnsembleRecord) -> None:
        """Complete the manifest, and move the folder to `final`.

        Args:
            record: Attributes of the ensemble; the folder has its method and iterations already.

        Raises:
            RuntimeError: This process does not write the folder, or the store has no `final`.
        """
        folder, final = self._folder, self._final
        if folder is None or final is None:
            raise MisuseError(
                "only the process that writes members can save them, in a store with a final folder; call "
                "save() there, and construct the store with final="
            )
        folder.record = replace(record, method=folder.record.method)
        with only_writer(self._path):
            folder.commit(folder.entries)
        shutil.rmtree(final, ignore_errors=True)  # a killed writer may have left some of its files
        make_folder(final.parent)
        self._path.rename(final)
        sync_folder(final.parent)
        sync_folder(self._path.parent)
        folder.path = final

    def _choose_role(self) -> None:
        # Not before training begins: trainers start their processes after the collector is constructed.
        if self._writes is None:
            grouped = distributed.is_available() and distributed.is_initialized()
            self._is_writer = not grouped or distributed.get_rank() == 0

    def _begin_folder(self, method: str) -> None:
        path = self._path
        is_checked = not self._overwrite and (path / MANIFEST).exists()
        if is_checked and (found := len(EnsembleFolder.open(path).entries)):
            options = f"{'writes=True, ' if self._writes else ''}overwrite=True"
            raise StorageError(
                f"{path} must be empty at the start of a run, but holds {found} members; resume from that "
                "run's checkpoint, choose another folder, or give "
                f"store=pfge.collectors.FolderStore(path, {options})"
            )
        self._folder = EnsembleFolder(path, EnsembleRecord(method=method))
        with only_writer(path):
            self._folder.commit([])

    def _open_with(self, known: list[int | None]) -> EnsembleFolder:
        """Return the folder with the members of a checkpoint, and without later ones."""
        folder = EnsembleFolder.open(self._path)
        if folder.iterations[: len(known)] != known:
            raise StorageError(
                f"{folder.path} must hold the members of iterations {known}, as the checkpoint does, "
                f"but holds those of {folder.iterations}; use the folder of that run"
            )
        folder.entries = folder.entries[: len(known)]
        return folder

    def _is_saved(self) -> bool:
        return self._final is not None and (self._final / MANIFEST).exists()

    def _current_path(self) -> Path:
        return self._final if self._final is not None and self._is_saved() else self._path

    def _written(self) -> list[int | None]:
        """Return the iterations of the members that the writer has written for this run."""
        version = self._version_of_manifest()
        if version is None:
            return []
        found = [member["iteration"] for member in read_manifest(self._current_path())["members"]]
        # Until the writer has replaced the manifest, later members are those of the run before.
        return found[: self._resumed] if version == self._manifest_before else found

    def _version_of_manifest(self) -> tuple[int, int] | None:
        try:
            status = (self._current_path() / MANIFEST).stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns
