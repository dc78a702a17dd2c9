"""What is saved of an ensemble, whether its members are packed or not."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfge.calibration import UNSCALED, Temperatures
from pfge.packed.packed_file import PackedFolder, is_packed_folder
from pfge.packed.packed_members import PackedMembers
from pfge.storage.ensemble_folder import EnsembleFolder
from pfge.storage.files import only_writer
from pfge.storage.manifest import NO_USAGE, Usage, prepare_for_overwrite
from pfge.views import Views
from pfge.weights import Weights


@dataclass(frozen=True)
class SavedEnsemble:
    """Members, as they are or packed, and what the manifest says of them."""

    members: Sequence[Weights]
    method: str | None
    model: str | None
    iterations: Sequence[int | None]
    temperatures: Temperatures = UNSCALED
    task: dict[str, Any] | None = None
    usage: Usage = NO_USAGE
    views: Views | None = None

    def write(self, path: Path) -> None:
        """Write the members to a folder; an ensemble that was there is replaced at once, at the end."""
        prepare_for_overwrite(path)
        with only_writer(path):
            if packed := self._packed():
                packed.save(path)
            else:
                folder = self._plain(path)
                members = zip(self.members, self.iterations, strict=True)
                folder.commit([folder.write(weights, iteration) for weights, iteration in members])

    def file_bytes(self) -> int:
        """Return the size of all files that `write` makes, without making one."""
        if packed := self._packed():
            return packed.file_bytes()
        return self._plain(Path()).file_bytes(self.members, self.iterations)

    def _packed(self) -> PackedFolder | None:
        if not isinstance(self.members, PackedMembers):
            return None
        return PackedFolder(
            self.members,
            self.method,
            self.model,
            self.iterations,
            self.temperatures,
            self.task,
            self.usage,
            self.views,
        )

    def _plain(self, path: Path) -> EnsembleFolder:
        return EnsembleFolder(
            path,
            method=self.method,
            model=self.model,
            temperatures=self.temperatures,
            task=self.task,
            usage=self.usage,
            views=self.views,
        )

    @classmethod
    def read(cls, path: Path, *, in_memory: bool = False) -> "SavedEnsemble":
        """Check a folder whole; members are read from disk when needed.

        Args:
            path: The folder.
            in_memory: Whether all members are copied into memory instead.

        Raises:
            StorageError: The folder is missing, damaged or foreign.
        """
        if is_packed_folder(path):
            packed = PackedFolder.open(path, in_memory=in_memory)
            return cls(
                packed.members,
                packed.method,
                packed.model,
                packed.iterations,
                packed.temperatures,
                packed.task,
                packed.usage,
                packed.views,
            )
        plain = EnsembleFolder.open(path)
        return cls(
            plain.members_in_memory() if in_memory else plain.members(),
            plain.method,
            plain.model,
            plain.iterations,
            plain.temperatures,
            plain.task,
            plain.usage,
            plain.views,
        )
