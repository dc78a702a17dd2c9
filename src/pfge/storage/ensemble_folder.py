"""An ensemble on disk: one safetensors file a member, and a manifest that is replaced last."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pfge.calibration import UNSCALED, Temperatures
from pfge.storage.atomic_files import only_writer
from pfge.storage.files import StorageError, read_shapes, read_tensors
from pfge.storage.lazy_members import LazyMembers
from pfge.storage.manifest import (
    MANIFEST,
    FileEntry,
    commit_manifest,
    describe_file,
    is_inside,
    read_manifest,
    read_temperatures,
    require_format,
    task_entries,
    temperature_entries,
    total_bytes,
    verify_file,
    write_file,
)
from pfge.weights import Weights

FORMAT = "pfge-ensemble"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Entry(FileEntry):
    """One member in the manifest; `iteration` is None where a member belongs to no single one."""

    iteration: int | None


class EnsembleFolder:
    """The members in a folder, in order; the manifest alone says which files count.

    Args:
        path: The folder.
        method: How the members were made, for people.
        model: How the module is built, for people: nothing is ever imported from it.
        temperatures: What their logits are divided by.
        task: The manifest's entry of the task, if it has one.
    """

    def __init__(
        self,
        path: Path,
        *,
        method: str | None = None,
        model: str | None = None,
        temperatures: Temperatures = UNSCALED,
        task: dict[str, Any] | None = None,
    ):
        self.path = path
        self.method = method
        self.model = model
        self.temperatures = temperatures
        self.task = task
        self.entries: list[Entry] = []

    @classmethod
    def open(cls, path: Path) -> "EnsembleFolder":
        """Read a folder's manifest and check every member against it, byte by byte.

        Raises:
            StorageError: Something is missing, damaged or foreign; the message says which file,
                what was expected and what was found.
        """
        manifest = read_manifest(path)
        method, model, task = (manifest.get(key) for key in ("method", "model", "task"))
        folder = cls(path, method=method, model=model, task=task)
        folder.entries = _parse_entries(path / MANIFEST, manifest)
        folder.temperatures = read_temperatures(path / MANIFEST, manifest, len(folder.entries))
        folder._verify()
        return folder

    @property
    def iterations(self) -> list[int | None]:
        """The iteration of each member."""
        return [entry.iteration for entry in self.entries]

    def write(self, weights: Weights, iteration: int | None) -> Entry:
        """Write one member's file, which does not count until `commit` names it."""
        return Entry(iteration=iteration, **asdict(write_file(self.path, "member", weights)))

    def commit(self, entries: list[Entry]) -> None:
        """Make these the folder's members, all at once, and remove files that no longer count."""
        commit_manifest(self.path, self._manifest(entries), entries)
        self.entries = list(entries)

    def append(self, weights: Weights, iteration: int | None) -> None:
        """Write one more member."""
        with only_writer(self.path):
            self.commit([*self.entries, self.write(weights, iteration)])

    def file_bytes(self, members: Iterable[Weights], iterations: Iterable[int | None]) -> int:
        """Return the size of all files that the folder would have with these members, without writing one."""
        entries = [
            Entry(iteration=iteration, **asdict(describe_file("member", weights)))
            for weights, iteration in zip(members, iterations, strict=True)
        ]
        return total_bytes(self._manifest(entries), entries)

    def members(self) -> LazyMembers:
        """Return the members as they are now, each read when it is asked for."""
        files = [self.path / entry.file for entry in self.entries]
        return LazyMembers(len(files), lambda index: read_tensors(files[index])[0])

    def _manifest(self, entries: Sequence[Entry]) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "method": self.method,
            "model": self.model,
            **temperature_entries(self.temperatures),
            **task_entries(self.task),
            "members": [asdict(entry) for entry in entries],
        }

    def _verify(self) -> None:
        shapes: dict[str, list[int]] | None = None
        for number, entry in enumerate(self.entries, 1):
            file = verify_file(self.path, entry, f"member {number}")
            found = read_shapes(file)
            shapes = shapes or found
            if found != shapes:
                differing = sorted(n for n in found.keys() | shapes if found.get(n) != shapes.get(n))
                raise StorageError(
                    f"{file} must have the first member's shapes, but differs in {differing[:5]}"
                )


def _parse_entries(path: Path, manifest: dict[str, Any]) -> list[Entry]:
    require_format(path, manifest, FORMAT, VERSION)
    members = manifest.get("members")
    if not isinstance(members, list):
        raise StorageError(f"{path} must list its members, found {type(members).__name__}")
    return [_parse_entry(path, member) for member in members]


def _parse_entry(path: Path, member: Any) -> Entry:
    match member:
        case {
            "file": str(file),
            "iteration": int() | None as iteration,
            "bytes": int(size),
            "sha256": str(digest),
        }:
            if is_inside(file):
                return Entry(file=file, iteration=iteration, bytes=size, sha256=digest)
    raise StorageError(f"{path} must give each member's file, iteration, bytes and sha256, found {member!r}")
