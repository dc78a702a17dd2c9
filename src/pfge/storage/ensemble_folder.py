"""Ensembles on disk: files of members, and a manifest, replaced last, that alone says which files count."""

import hashlib
import re
import shutil
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, overload

from torch import nn

from pfge.storage.files import (
    MANIFEST_BYTES,
    MOST_MEMBERS,
    StorageError,
    is_leftover,
    json_text,
    measure_parts,
    only_writer,
    parse_tensors,
    publish,
    read_bounded,
    read_json_object,
    read_shapes,
    read_tensors,
    remove_leftovers,
    require_digest,
    temporary_file,
    tensor_file,
    write_json,
    write_parts,
)
from pfge.storage.record import NO_RECORD, EnsembleRecord
from pfge.weights import (
    Weights,
    count_bytes,
    has_same_bits,
    load_weights,
    share,
    shared_part,
    without,
)

MANIFEST = "manifest.json"
FORMAT = "pfge-ensemble"
VERSION = 1
VERSION_WITH_SHARED = 2  # for folders whose members share tensors; all others can be read by version 1
ADAPTERS = "pfge-adapters"
"""The format of a folder of adapters, which `pfge.integrations.peft` reads and writes."""
BESIDE = ("cascade.json", "evaluation.json")
"""Files that commands write beside a manifest."""
_FILE = re.compile(r"(member|packed|shared)-[0-9a-f]{16}\.safetensors")
_ADAPTER = re.compile(r"adapter-\d+-[0-9a-f]{8}")


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file that a manifest names, with its size and digest.

    Args:
        file: Name of the file in its folder.
        bytes: Size of the file.
        sha256: SHA-256 of the file.
    """

    file: str
    bytes: int
    sha256: str

    @classmethod
    def find(cls, entry: Any) -> Self | None:
        """Return what an entry of a manifest, which may be a stranger's, says of a file.

        Other keys are ignored. The result is None if a value is missing, has the wrong type, or names a file
        outside of the folder.
        """
        names = [field.name for field in fields(cls)]
        if isinstance(entry, Mapping) and all(n in entry and _IS_VALID[n](entry[n]) for n in names):
            return cls(**{name: entry[name] for name in names})
        return None

    @classmethod
    def parse(cls, path: Path, entry: Any) -> Self:
        """Return what `find` returns, or raise a `StorageError` that names the manifest's `path`."""
        if (found := cls.find(entry)) is not None:
            return found
        names = ", ".join(field.name for field in fields(cls))
        raise StorageError(f"{path} must give {names} of each file, found {entry!r}")


@dataclass(frozen=True, kw_only=True)
class MemberEntry(FileEntry):
    """The file of one member.

    Args:
        iteration: Iteration at which the member was collected; None if it belongs to no single one.
    """

    iteration: int | None


def is_inside(file: str) -> bool:
    """Return whether a name in a manifest, which may be a stranger's, is that of a file in its folder."""
    return Path(file).name == file and file not in ("", ".", "..")


def is_iteration(value: Any) -> bool:
    """Return whether a value in a manifest, which may be a stranger's, is an iteration or None."""
    return value is None or type(value) is int


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and is_inside(value)


_IS_VALID: Mapping[str, Callable[[Any], bool]] = {
    "file": _is_name,
    "folder": _is_name,
    "bytes": lambda value: type(value) is int,
    "sha256": lambda value: isinstance(value, str),
    "iteration": is_iteration,
}


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of an ensemble folder, whatever its format."""
    if not path.is_dir():
        raise StorageError(f"{path} must be an ensemble folder, but no such folder exists")
    if not (path / MANIFEST).exists():
        raise StorageError(f"{path} is not an ensemble folder: it has no {MANIFEST}")
    return read_json_object(path / MANIFEST, MANIFEST_BYTES)


def read_record(path: Path) -> EnsembleRecord:
    """Read the attributes of the ensemble in a folder, whatever its format, without its members."""
    return EnsembleRecord.from_manifest(path / MANIFEST, read_manifest(path))


def require_format(path: Path, manifest: Mapping[str, Any], name: str, version: int) -> None:
    """Refuse a manifest of another format, or of a version that is not known here."""
    if (found := manifest.get("format")) != name:
        remedy = "; use pfge.integrations.peft.load_adapters" if found == ADAPTERS else ""
        raise StorageError(f"{path} must have format {name!r}, found {found!r}{remedy}")
    if manifest.get("version") != version:
        raise StorageError(
            f"{path} must have format version {version}, found {manifest.get('version')!r}; update pfge"
        )


def require_few_members(path: Path, count: int) -> None:
    """Refuse a manifest of more members than any ensemble has, because each is a forward pass or more."""
    if count > MOST_MEMBERS:
        raise StorageError(f"{path} must list at most {MOST_MEMBERS:,} members, found {count:,}")


_Entry = TypeVar("_Entry", bound=FileEntry)


def parse_members(path: Path, manifest: Mapping[str, Any], kind: type[_Entry]) -> list[_Entry]:
    """Return the entries of a manifest that lists a file for each member."""
    members = manifest.get("members")
    if not isinstance(members, list):
        raise StorageError(f"{path} must list its members, found {type(members).__name__}")
    require_few_members(path, len(members))
    return [kind.parse(path, member) for member in members]


def named_files(folder: Path, manifest: Mapping[str, Any]) -> Iterator[tuple[Path, FileEntry]]:
    """Yield the folder and the entry of every file that a manifest names, whatever its format, once each.

    Malformed entries are left out; whoever opens the ensemble refuses them.
    """
    members = manifest.get("members")
    done: set[Path] = set()
    for entry in (manifest, manifest.get("shared"), *(members if isinstance(members, list) else ())):
        if (found := FileEntry.find(entry)) is None:
            continue
        own = entry.get("folder")  # each adapter has one
        place = folder / own if _is_name(own) else folder
        if place / found.file not in done:
            done.add(place / found.file)
            yield place, found


def write_file(
    path: Path, kind: str, tensors: Weights, metadata: Mapping[str, str] | None = None
) -> FileEntry:
    """Write tensors to a file of a folder, which does not count until a manifest names it."""
    with temporary_file(path, kind) as temporary:
        entry = _entry(kind, *write_parts(temporary, tensor_file(tensors, metadata)))
        publish(temporary, path / entry.file)
    return entry


def describe_file(kind: str, tensors: Weights, metadata: Mapping[str, str] | None = None) -> FileEntry:
    """Return the entry of the file that `write_file` would write."""
    return _entry(kind, *measure_parts(tensor_file(tensors, metadata)))


def _entry(kind: str, size: int, digest: str) -> FileEntry:
    # The digest is in the name, so a new file never overwrites one that the old manifest names.
    return FileEntry(file=f"{kind}-{digest[:16]}.safetensors", bytes=size, sha256=digest)


def commit_manifest(
    path: Path, manifest: dict[str, Any], entries: Sequence[FileEntry], folders: Collection[str] = ()
) -> None:
    """Replace a folder's manifest by one that names these files, and then remove files that no longer count.

    Args:
        path: The folder.
        manifest: Its new content.
        entries: Files that the manifest names.
        folders: Folders of adapters that the manifest names.
    """
    counted = {entry.file for entry in entries}
    for name in counted:
        if not (path / name).exists():
            raise StorageError(
                f"{path / name} was removed by another writer of the folder; give each its own folder"
            )
    write_json(path / MANIFEST, manifest)
    for found in path.iterdir():
        if found.name in (*counted, *folders) or not _holds_members(found):
            continue
        if found.is_dir():
            shutil.rmtree(found)
        else:
            found.unlink(missing_ok=True)
    remove_leftovers(path)


def total_bytes(manifest: dict[str, Any], entries: Sequence[FileEntry]) -> int:
    """Return the size of a manifest and the files that it names."""
    files = {entry.file: entry.bytes for entry in entries}
    return len(json_text(manifest).encode()) + sum(files.values())


def verify_file(path: Path, entry: FileEntry, what: str) -> Path:
    """Return the path of a file after comparing it with its entry byte by byte.

    Args:
        path: The folder.
        entry: The file's entry in the manifest.
        what: Description of the file for errors, such as "member 1".
    """
    source = f"{MANIFEST} names it as {what}"
    return require_digest(path / entry.file, entry.sha256, source, size=entry.bytes)


def read_verified(path: Path, entry: FileEntry, what: str) -> tuple[Weights, dict[str, str]]:
    """Return the tensors and the metadata of a file as a copy in memory, checked as it was read.

    The arguments are those of `verify_file`. The returned tensors are the checked ones, whatever happens to
    the file later.
    """
    data = read_bounded(verify_file(path, entry, what), entry.bytes)
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise StorageError(f"{path / entry.file} was changed while it was read; read it again")
    return parse_tensors(data, path / entry.file)


def prepare_for_overwrite(path: Path) -> None:
    """Refuse a folder that holds other files than those of an ensemble."""
    if path.exists() and not path.is_dir():
        raise StorageError(f"{path} must be a folder, but it is a file; choose another name")
    if not path.is_dir():
        return
    # The folder is listed once, because another writer may put its manifest there between two looks.
    others = [file for file in path.iterdir() if not is_leftover(file.name)]
    found = _format_in(path / MANIFEST) if any(file.name == MANIFEST for file in others) else None
    if found is not None and found.startswith("pfge-"):
        return
    # A manifest that cannot be read may be that of an ensemble that was damaged.
    is_foreign = found is not None
    if is_foreign or not all(file.name in (MANIFEST, *BESIDE) or _holds_members(file) for file in others):
        raise StorageError(f"{path} holds other files and no ensemble; choose an empty or new folder")


def _format_in(manifest: Path) -> str | None:
    """Return the format that a manifest states, or None if it cannot be read."""
    try:
        return str(read_json_object(manifest).get("format"))
    except StorageError:
        return None


def _holds_members(path: Path) -> bool:
    """Return whether a file or folder has a name that only this module gives, digest and all.

    A user's own files may be called member-1.safetensors, and they are never removed.
    """
    if _ADAPTER.fullmatch(path.name):
        return path.is_dir() and not path.is_symlink()
    return bool(_FILE.fullmatch(path.name)) and not path.is_dir()


class Members(Sequence[Weights]):
    """The members of an ensemble: a sequence of weights that knows how it is loaded and stored.

    Packed members (`pfge.packed`) override all of it.
    """

    @overload
    def __getitem__(self, index: int) -> Weights: ...
    @overload
    def __getitem__(self, index: slice) -> "Members": ...
    @abstractmethod
    def __getitem__(self, index: int | slice) -> "Weights | Members":
        """Return one member, or several."""

    @property
    def nbytes(self) -> int:
        """Bytes of all members as they are stored in memory; shared tensors count once."""
        if not len(self):
            return 0
        once = count_bytes(shared_part(first := self[0]))
        return once + len(self) * (count_bytes(first) - once)

    @property
    def unpacked_nbytes(self) -> int:
        """Bytes of all members once they are unpacked."""
        return self.nbytes

    @property
    def is_quantized(self) -> bool:
        """Whether any tensor is stored in fewer bits than the model's own type."""
        return False

    def load_into(self, model: nn.Module, index: int) -> None:
        """Put one member into a model of the same architecture.

        Raises:
            ValueError: The model and the members differ; the model is left as it was.
        """
        load_weights(model, self[index])

    def with_tensors(self, fresh: Sequence[Weights]) -> "Members":
        """Return the members with some tensors replaced.

        Args:
            fresh: Tensors with new values, for each member.
        """
        return LazyMembers(len(self), partial(_merge, self, fresh))

    def write(self, path: Path, record: EnsembleRecord) -> None:
        """Write the members and their record to a folder, replacing the ensemble there in the last step."""
        folder = EnsembleFolder(path, record)
        members = zip(self, record.iterations, strict=True)
        folder.commit([folder.write(weights, iteration) for weights, iteration in members])

    def file_bytes(self, record: EnsembleRecord) -> int:
        """Return the size of all files that `write` makes, without making one."""
        return EnsembleFolder(Path(), record).file_bytes(self, record.iterations)


def _merge(members: Sequence[Weights], fresh: Sequence[Weights], index: int) -> Weights:
    """Return a member with new values of some tensors; a named function, as lambdas cannot be pickled."""
    return members[index] | fresh[index]


class LazyMembers(Members):
    """Members that are read when they are needed, and not kept in memory.

    Args:
        length: Number of members.
        read: Returns the member at an index from 0 to length - 1.
        nbytes: Bytes of the members together, where they share tensors: a number if it is the same for
            any number of members, or a function of that number. None if each has its own tensors.
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
    def nbytes(self) -> int:
        """Bytes of all members, as given, or computed from the first one."""
        given = self._nbytes(len(self)) if callable(self._nbytes) else self._nbytes
        return super().nbytes if given is None else given

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Weights: ...
    @overload
    def __getitem__(self, index: slice) -> "LazyMembers": ...
    def __getitem__(self, index: int | slice) -> "Weights | LazyMembers":
        if isinstance(index, int):
            return self._read(self._indices[index])
        some = LazyMembers(0, self._read, nbytes=self._nbytes)
        some._indices = self._indices[index]
        return some


def as_members(members: Sequence[Weights]) -> Members:
    """Return a list or another sequence of weights as `Members`, without copying it."""
    if isinstance(members, Members):
        return members
    return LazyMembers(len(members), members.__getitem__, nbytes=getattr(members, "nbytes", None))


def write_ensemble(path: Path, members: Sequence[Weights], record: EnsembleRecord) -> None:
    """Write an ensemble to a folder; one that was there is replaced in the last step.

    Raises:
        StorageError: The folder holds other files.
    """
    prepare_for_overwrite(path)
    with only_writer(path):
        as_members(members).write(path, record)


class EnsembleFolder:
    """A folder with one file for each member, in order; only the manifest says which files count.

    Args:
        path: The folder.
        record: Attributes of the ensemble; the folder's entries have the iterations.
    """

    def __init__(self, path: Path, record: EnsembleRecord = NO_RECORD):
        self.path = path
        self.record = record
        self.entries: list[MemberEntry] = []
        self.shared: FileEntry | None = None
        self._shared_tensors: Weights | None = None

    @classmethod
    def open(cls, path: Path, manifest: dict[str, Any] | None = None) -> "EnsembleFolder":
        """Read a folder's manifest and check every member against it, byte by byte.

        Args:
            path: The folder.
            manifest: Its manifest, if it was read before.

        Raises:
            StorageError: A file is missing, damaged or foreign; the message gives the file, the expected
                value and the one that was found.
        """
        manifest = read_manifest(path) if manifest is None else manifest
        file, shared = path / MANIFEST, manifest.get("shared")
        require_format(file, manifest, FORMAT, VERSION_WITH_SHARED if "shared" in manifest else VERSION)
        entries = parse_members(file, manifest, MemberEntry)
        iterations = [entry.iteration for entry in entries]
        folder = cls(path, EnsembleRecord.from_manifest(file, manifest, iterations))
        folder.entries = entries
        folder.shared = None if shared is None else FileEntry.parse(file, shared)
        folder._verify()
        return folder

    @property
    def iterations(self) -> list[int | None]:
        """Iteration of each member."""
        return [entry.iteration for entry in self.entries]

    def write(self, weights: Weights, iteration: int | None) -> MemberEntry:
        """Write one member's file, which does not count until `commit` names it.

        The first member with shared tensors decides which tensors their file holds.
        """
        own = self._split(weights, partial(write_file, self.path))
        return MemberEntry(iteration=iteration, **asdict(write_file(self.path, "member", own)))

    def commit(self, entries: list[MemberEntry]) -> None:
        """Make these the folder's members, all at once, and remove files that no longer count."""
        commit_manifest(self.path, self._manifest(entries), self._files(entries))
        self.entries = list(entries)
        self.record = replace(self.record, iterations=tuple(self.iterations))

    def append(self, weights: Weights, iteration: int | None) -> None:
        """Write one more member."""
        with only_writer(self.path):
            self.commit([*self.entries, self.write(weights, iteration)])

    def file_bytes(self, members: Iterable[Weights], iterations: Iterable[int | None]) -> int:
        """Return the size of all files that the folder would have with these members, without writing one."""
        entries = [
            MemberEntry(
                iteration=iteration, **asdict(describe_file("member", self._split(weights, describe_file)))
            )
            for weights, iteration in zip(members, iterations, strict=True)
        ]
        return total_bytes(self._manifest(entries), self._files(entries))

    def members(self) -> LazyMembers:
        """Return the current members, each read when it is needed; shared tensors are kept in memory.

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
        """Return a member without shared tensors; the first time, `put` writes these to a file."""
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

    def _files(self, entries: Sequence[MemberEntry]) -> list[FileEntry]:
        return [*entries, self.shared] if self.shared else [*entries]

    def _manifest(self, entries: Sequence[MemberEntry]) -> dict[str, Any]:
        files: dict[str, Any] = {"shared": asdict(self.shared)} if self.shared else {}
        files["members"] = [asdict(entry) for entry in entries]
        return self.record.to_manifest(FORMAT, VERSION_WITH_SHARED if self.shared else VERSION, {}, files)

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
