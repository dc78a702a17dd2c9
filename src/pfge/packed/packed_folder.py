"""Packed members on disk: one safetensors file, and a manifest that is replaced last."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pfge.calibration import UNSCALED, Temperatures
from pfge.packed.packed_file import FileContent
from pfge.packed.packed_members import PackedMembers
from pfge.storage import manifest as manifests
from pfge.storage.files import StorageError, read_tensors
from pfge.storage.usage import NO_USAGE, Usage
from pfge.views import Views

FORMAT = "pfge-packed-ensemble"
VERSION = 3
"""Of folders that are deflated. Of others, those with components have version 2, and those without 1."""
KIND = "packed"  # what the file's name begins with


@dataclass(frozen=True)
class PackedFolder:
    """Packed members and what the manifest says of them.

    A file that is deflated takes fewer bytes, and is read into memory whole; any other is mapped. Members
    whose form was chosen for a size, which have components, are deflated if that is smaller; `deflated`
    overrides this.
    """

    members: PackedMembers
    method: str | None
    model: str | None
    iterations: Sequence[int | None]
    temperatures: Temperatures = UNSCALED
    task: dict[str, Any] | None = None
    usage: Usage = NO_USAGE
    views: Views | None = None
    deflated: bool | None = None

    @property
    def _has_components(self) -> bool:
        return any(tensor.mix is not None for tensor in self.members.tensors.values())

    def save(self, path: Path) -> None:
        """Write the members, which replace those in the folder at once, at the end."""
        content = self._content()
        entry = manifests.write_file(path, KIND, content.tensors, content.metadata)
        manifests.commit_manifest(path, self._manifest(entry, content), [entry])

    def file_bytes(self) -> int:
        """Return the size of all files that `save` writes, without writing one."""
        content = self._content()
        entry = manifests.describe_file(KIND, content.tensors, content.metadata)
        return manifests.total_bytes(self._manifest(entry, content), [entry])

    def _content(self) -> FileContent:
        deflated = self._has_components if self.deflated is None else self.deflated
        made = FileContent.of(self.members, deflated=deflated)
        if self.deflated is None and deflated:
            return min(made, FileContent.of(self.members, deflated=False), key=lambda content: content.nbytes)
        return made

    def _manifest(self, entry: manifests.FileEntry, content: FileContent) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION if content.deflated else 2 if self._has_components else 1,
            "method": self.method,
            "model": self.model,
            "iterations": list(self.iterations),
            **manifests.temperature_entries(self.temperatures),
            **manifests.task_entries(self.task),
            **manifests.usage_entries(self.usage),
            **manifests.views_entries(self.views),
            **asdict(entry),
        }

    @classmethod
    def open(cls, path: Path, *, in_memory: bool = False) -> "PackedFolder":
        """Check the file byte by byte and map it into memory; a member is read when it is asked for.

        Args:
            path: The folder.
            in_memory: Whether to copy the file into memory instead, so that nothing depends on it later.

        Raises:
            StorageError: Something is missing, damaged or foreign; the message says which file,
                what was expected and what was found.
        """
        manifest = manifests.read_manifest(path)
        version = found if (found := manifest.get("version")) in (1, 2) else VERSION
        manifests.require_format(path / manifests.MANIFEST, manifest, FORMAT, version)
        match manifest:
            case {
                "file": str(file),
                "bytes": int(size),
                "sha256": str(digest),
                "iterations": [*iterations],
            } if manifests.is_inside(file) and iterations:
                entry = manifests.FileEntry(file=file, bytes=size, sha256=digest)
                if in_memory:
                    tensors, metadata = manifests.read_verified(path, entry, "its members")
                else:
                    tensors, metadata = read_tensors(manifests.verify_file(path, entry, "its members"))
            case _:
                raise StorageError(
                    f"{path / manifests.MANIFEST} must give file, bytes, sha256 and iterations"
                )
        content = FileContent(tensors, metadata, deflated=version == VERSION)
        members = content.members(path / file, len(iterations))
        temperatures = manifests.read_temperatures(path / manifests.MANIFEST, manifest, len(iterations))
        method, model, task = (manifest.get(key) for key in ("method", "model", "task"))
        usage = Usage.from_manifest(path / manifests.MANIFEST, manifest.get("usage"))
        views = manifests.read_views(path / manifests.MANIFEST, manifest)
        return cls(members, method, model, iterations, temperatures, task, usage, views)


def is_packed_folder(path: Path) -> bool:
    """Return whether a folder's manifest says that its members are packed."""
    return manifests.read_manifest(path).get("format") == FORMAT
