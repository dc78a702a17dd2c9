"""Ensembles on disk: one safetensors file per member, and a manifest that is replaced last."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, overload

from pfge.calibration import UNSCALED, Temperatures
from pfge.storage.files import StorageError, only_writer, read_shapes, read_tensors
from pfge.storage.manifest import (
    MANIFEST,
    NO_USAGE,
    FileEntry,
    Usage,
    commit_manifest,
    describe_file,
    is_inside,
    read_manifest,
    read_temperatures,
    read_verified,
    read_views,
    require_few_members,
    require_format,
    task_entries,
    temperature_entries,
    total_bytes,
    usage_entries,
    verify_file,
    views_entries,
    write_file,
)
from pfge.views import Views
from pfge.weights import Weights, has_same_bits, share, shared_part, without


class LazyMembers(Sequence[Weights]):
    """A sequence of weights of which none is kept in memory.

    Args:
        length: How many members there are.
        read: Returns the member at an index from 0 to length - 1.
        nbytes: The bytes of the members together, where they share tensors: a number if that is the same for
            any of them, or a function of how many they are; None if each has its own.
    """

    def __init__(
        self,
        length: int,
        read: Callable[[int], Weights],
        *,
        nbytes: int | Callable[[int], int] | None = None,
    ):
        self._nbytes = nbytes
        self._indices = range(length)
        self._read = read

    @property
    def nbytes(self) -> int | None:
        """The bytes of the members together, where they share tensors."""
        return self._nbytes(len(self)) if callable(self._nbytes) else self._nbytes

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Weights: ...
    @overload
    def __getitem__(self, index: slice) -> "LazyMembers": ...
    def __getitem__(self, index: int | slice) -> "Weights | LazyMembers":
        if isinstance(index, int):
            return self._read(self._indices[index])
        part = LazyMembers(0, self._read, nbytes=self._nbytes)
        part._indices = self._indices[index]
        return part


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
        return LazyMembers(len(files), partial(self._read, files))

    def _read(self, files: Sequence[Path], index: int) -> Weights:
        return self._read_shared() | read_tensors(files[index])[0]

    def members_in_memory(self) -> list[Weights]:
        """Return a copy of the members in memory, checked as it was read."""
        if self.shared and self._shared_tensors is None:
            found, _ = read_verified(self.path, self.shared, "shared tensors")
            self._shared_tensors = {name: share(tensor) for name, tensor in found.items()}
        own: dict[str, Weights] = {}  # equal members are one file
        for number, entry in enumerate(self.entries, 1):
            if entry.file not in own:
                own[entry.file] = read_verified(self.path, entry, f"member {number}")[0]
        return [self._read_shared() | own[entry.file] for entry in self.entries]

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
        checked: set[tuple[str, int, str]] = set()  # equal members are one file
        for number, entry in enumerate(self.entries, 1):
            if (key := (entry.file, entry.bytes, entry.sha256)) in checked:
                continue
            checked.add(key)
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
    require_few_members(path, len(members))
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
