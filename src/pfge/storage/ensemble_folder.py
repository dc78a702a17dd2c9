"""An ensemble on disk: one safetensors file a member, and a manifest that is replaced last.

Tensors that are shared, as frozen parameters are, have one file of their own, which the manifest names as
`shared`. A member is what is in its own file, and what is in the shared file and not in its own.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pfge.calibration import UNSCALED, Temperatures
from pfge.frozen import has_same_bits, share, shared_part, without
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
    read_verified,
    read_views,
    require_format,
    task_entries,
    temperature_entries,
    total_bytes,
    usage_entries,
    verify_file,
    views_entries,
    write_file,
)
from pfge.storage.usage import NO_USAGE, Usage
from pfge.views import Views
from pfge.weights import Weights

FORMAT = "pfge-ensemble"
VERSION = 1
VERSION_WITH_SHARED = 2  # of folders whose members share tensors; all others can be read by version 1


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
        usage: What is needed to use the members.
        views: In which they see each picture, if not only as it is.
    """

    def __init__(
        self,
        path: Path,
        *,
        method: str | None = None,
        model: str | None = None,
        temperatures: Temperatures = UNSCALED,
        task: dict[str, Any] | None = None,
        usage: Usage = NO_USAGE,
        views: Views | None = None,
    ):
        self.path = path
        self.method = method
        self.model = model
        self.temperatures = temperatures
        self.task = task
        self.usage = usage
        self.views = views
        self.entries: list[Entry] = []
        self.shared: FileEntry | None = None
        self._shared_tensors: Weights | None = None

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
        folder.shared = _parse_shared(path / MANIFEST, manifest)
        folder.temperatures = read_temperatures(path / MANIFEST, manifest, len(folder.entries))
        folder.usage = Usage.from_manifest(path / MANIFEST, manifest.get("usage"))
        folder.views = read_views(path / MANIFEST, manifest)
        folder._verify()
        return folder

    @property
    def iterations(self) -> list[int | None]:
        """The iteration of each member."""
        return [entry.iteration for entry in self.entries]

    def write(self, weights: Weights, iteration: int | None) -> Entry:
        """Write one member's file, which does not count until `commit` names it.

        The first member that has shared tensors decides what is in their file.
        """
        own = self._split(weights, partial(write_file, self.path))
        return Entry(iteration=iteration, **asdict(write_file(self.path, "member", own)))

    def commit(self, entries: list[Entry]) -> None:
        """Make these the folder's members, all at once, and remove files that no longer count."""
        commit_manifest(self.path, self._manifest(entries), self._files(entries))
        self.entries = list(entries)

    def append(self, weights: Weights, iteration: int | None) -> None:
        """Write one more member."""
        with only_writer(self.path):
            self.commit([*self.entries, self.write(weights, iteration)])

    def file_bytes(self, members: Iterable[Weights], iterations: Iterable[int | None]) -> int:
        """Return the size of all files that the folder would have with these members, without writing one."""
        entries = [
            Entry(iteration=iteration, **asdict(describe_file("member", self._split(weights, describe_file))))
            for weights, iteration in zip(members, iterations, strict=True)
        ]
        return total_bytes(self._manifest(entries), self._files(entries))

    def members(self) -> LazyMembers:
        """Return the members as they are now, each read when it is asked for; shared tensors are kept.

        The files were checked when the folder was opened, and are not checked again.
        """
        files = [self.path / entry.file for entry in self.entries]
        return LazyMembers(len(files), lambda index: self._read_shared() | read_tensors(files[index])[0])

    def members_in_memory(self) -> list[Weights]:
        """Return a copy of the members in memory, checked as it was read."""
        if self.shared and self._shared_tensors is None:
            found, _ = read_verified(self.path, self.shared, "shared tensors")
            self._shared_tensors = {name: share(tensor) for name, tensor in found.items()}
        return [
            self._read_shared() | read_verified(self.path, entry, f"member {number}")[0]
            for number, entry in enumerate(self.entries, 1)
        ]

    def _split(self, weights: Weights, put: Callable[[str, Weights], FileEntry]) -> Weights:
        """Return what a member has for itself; the first time, its shared tensors are put into a file."""
        shared = shared_part(weights)
        if shared and self.shared is None:
            self.shared, self._shared_tensors = put("shared", shared), shared
        known = self._read_shared() if shared else {}
        return without(weights, {n for n, t in shared.items() if n in known and has_same_bits(known[n], t)})

    def _read_shared(self) -> Weights:
        """Return the tensors that all members share, read once."""
        if self._shared_tensors is None:
            found = read_tensors(self.path / self.shared.file)[0] if self.shared else {}
            self._shared_tensors = {name: share(tensor) for name, tensor in found.items()}
        return self._shared_tensors

    def _files(self, entries: Sequence[Entry]) -> list[FileEntry]:
        return [*entries, self.shared] if self.shared else [*entries]

    def _manifest(self, entries: Sequence[Entry]) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION_WITH_SHARED if self.shared else VERSION,
            "method": self.method,
            "model": self.model,
            **temperature_entries(self.temperatures),
            **task_entries(self.task),
            **usage_entries(self.usage),
            **views_entries(self.views),
            **({"shared": asdict(self.shared)} if self.shared else {}),
            "members": [asdict(entry) for entry in entries],
        }

    def _verify(self) -> None:
        shapes: dict[str, list[int]] | None = None
        shared = read_shapes(verify_file(self.path, self.shared, "shared tensors")) if self.shared else {}
        for number, entry in enumerate(self.entries, 1):
            file = verify_file(self.path, entry, f"member {number}")
            found = shared | read_shapes(file)
            shapes = shapes or found
            if found != shapes:
                differing = sorted(n for n in found.keys() | shapes if found.get(n) != shapes.get(n))
                raise StorageError(
                    f"{file} must have the first member's shapes, but differs in {differing[:5]}"
                )


def _parse_entries(path: Path, manifest: dict[str, Any]) -> list[Entry]:
    require_format(path, manifest, FORMAT, VERSION_WITH_SHARED if "shared" in manifest else VERSION)
    members = manifest.get("members")
    if not isinstance(members, list):
        raise StorageError(f"{path} must list its members, found {type(members).__name__}")
    return [_parse_entry(path, member) for member in members]


def _parse_shared(path: Path, manifest: dict[str, Any]) -> FileEntry | None:
    match manifest.get("shared"):
        case None:
            return None
        case {"file": str(file), "bytes": int(size), "sha256": str(digest)} if is_inside(file):
            return FileEntry(file=file, bytes=size, sha256=digest)
        case found:
            raise StorageError(f"{path} must give the file, bytes and sha256 of shared, found {found!r}")


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
