"""The members of a method while its path is trained, written once: finished, and by one process."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pfge.collectors.stores import FolderStore
from pfge.storage.ensemble_folder import EnsembleFolder
from pfge.storage.files import make_folder, only_writer, sync_folder
from pfge.storage.manifest import MANIFEST, Usage
from pfge.weights import Weights


class MemberStore:
    """Members in a folder, which becomes that of the saved ensemble once the path ends.

    Args:
        path: The folder while the path is trained.
        saved: Where the folder goes at the end.
        finish: Returns the weights as they are saved, with BatchNorm statistics of their own. Every process
            calls it.
        writes: Whether this process writes the files; the others count members and read them.
    """

    def __init__(self, path: Path, saved: Path, finish: Callable[[Weights], Weights], *, writes: bool):
        self._path = path
        self._saved = saved
        self._finish = finish
        self._files = FolderStore(path) if writes else None
        self.iterations: Sequence[int | None] = []

    def begin(self, method: str) -> None:
        """Start without members."""
        if self._files is not None:
            self._files.begin(method)
        self.iterations = []

    def append(self, iteration: int, weights: Weights) -> None:
        """Finish a member and write it."""
        finished = self._finish(weights)
        if self._files is not None:
            self._files.append(iteration, finished)
        self.iterations = [*self.iterations, iteration]

    def members(self) -> Sequence[Weights]:
        """Return the members that are in the folder by now."""
        if self._files is not None:
            return self._files.members()
        return EnsembleFolder.open(self._saved if self._is_saved() else self._path).members()

    def state_dict(self) -> dict[str, Any]:
        """Return which members there are; the folder holds them."""
        return {"iterations": list(self.iterations)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the members that the state knows; later ones will be made again."""
        # Saved members are read from there: a path is saved only once it has ended.
        if self._files is not None and not self._is_saved():
            self._files.load_state_dict(state)
        self.iterations = list(state["iterations"])

    def save(self, *, model: str | None, task: dict[str, Any] | None, usage: Usage) -> None:
        """Give the folder its final name.

        Args:
            model: How the module is built, for the manifest.
            task: The manifest's entry of the task.
            usage: What is needed to use the members.
        """
        if self._files is None:
            raise RuntimeError("only the process that writes members can save them")
        folder = self._files.folder
        folder.model, folder.task, folder.usage = model, task, usage
        with only_writer(self._path):
            folder.commit(folder.entries)
        shutil.rmtree(self._saved, ignore_errors=True)  # a killed writer may have left a part of one
        make_folder(self._saved.parent)
        self._path.rename(self._saved)
        sync_folder(self._saved.parent)
        sync_folder(self._path.parent)
        folder.path = self._saved

    def _is_saved(self) -> bool:
        return (self._saved / MANIFEST).exists()
