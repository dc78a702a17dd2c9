"""An ensemble on disk: one safetensors file a member, and a manifest that is replaced last."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pfge.calibration import UNSCALED, Temperatures
from pfge.storage.atomic_files import is_leftover, only_writer, publish, remove_leftovers, temporary_file
from pfge.storage.files import (
    StorageError,
    checksum,
    json_text,
    measure_parts,
    read_json_object,
    read_shapes,
    read_tensors,
    write_json,
    write_parts,
)
from pfge.storage.lazy_members import LazyMembers
from pfge.storage.tensor_bytes import tensor_file
from pfge.weights import Weights

FORMAT = "pfge-ensemble"
VERSION = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file that a manifest names, as it must be."""

    file: str
    bytes: int
    sha256: str


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
    """

    def __init__(
        self,
        path: Path,
        *,
        method: str | None = None,
        model: str | None = None,
        temperatures: Temperatures = UNSCALED,
    ):
        self.path = path
        self.method = method
        self.model = model
        self.temperatures = temperatures
        self.entries: list[Entry] = []

    @classmethod
    def open(cls, path: Path) -> "EnsembleFolder":
        """Read a folder's manifest and check every member against it, byte by byte.

        Raises:
            StorageError: Something is missing, damaged or foreign; the message says which file,
                what was expected and what was found.
        """
        manifest = read_manifest(path)
        folder = cls(path, method=manifest.get("method"), model=manifest.get("model"))
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


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of an ensemble folder, whatever its format."""
    if not path.is_dir():
        raise StorageError(f"{path} must be an ensemble folder, but no such folder exists")
    if not (path / MANIFEST).exists():
        raise StorageError(f"{path} is not an ensemble folder: it has no {MANIFEST}")
    return read_json_object(path / MANIFEST)


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
    # The digest in the name: a new file never overwrites one that the old manifest names.
    return FileEntry(file=f"{kind}-{digest[:16]}.safetensors", bytes=size, sha256=digest)


def commit_manifest(path: Path, manifest: dict[str, Any], entries: Sequence[FileEntry]) -> None:
    """Replace a folder's manifest by one that names these files, and then remove files that do not count."""
    counted = {entry.file for entry in entries}
    for name in counted:
        if not (path / name).exists():
            raise StorageError(
                f"{path / name} was removed by another writer of the folder; give each its own folder"
            )
    write_json(path / MANIFEST, manifest)
    for file in path.iterdir():
        if _holds_members(file) and file.name not in counted:
            file.unlink(missing_ok=True)
    remove_leftovers(path)


def total_bytes(manifest: dict[str, Any], entries: Sequence[FileEntry]) -> int:
    """Return the size of a manifest and the files that it names."""
    files = {entry.file: entry.bytes for entry in entries}
    return len(json_text(manifest).encode()) + sum(files.values())


def verify_file(path: Path, entry: FileEntry, what: str) -> Path:
    """Return the path of a file that is byte by byte as the manifest says; `what` it is, for the error."""
    file = path / entry.file
    if not file.is_file():
        raise StorageError(f"{file} is missing, but {MANIFEST} names it as {what}")
    size = file.stat().st_size
    if size != entry.bytes:
        raise StorageError(f"{file} must have {entry.bytes} bytes, found {size}: it is truncated")
    digest = checksum(file)
    if digest != entry.sha256:
        raise StorageError(f"{file} must have SHA-256 {entry.sha256}, found {digest}: it is corrupted")
    return file


def prepare_for_overwrite(path: Path) -> None:
    """Refuse a folder whose files are somebody else's."""
    if path.exists() and not path.is_dir():
        raise StorageError(f"{path} must be a folder, but it is a file; choose another name")
    if not path.is_dir() or (path / MANIFEST).exists():
        return
    if not all(_holds_members(file) or is_leftover(file.name) for file in path.iterdir()):
        raise StorageError(f"{path} holds other files and no ensemble; choose an empty or new folder")


def _holds_members(file: Path) -> bool:
    return file.match("member-*.safetensors") or file.match("packed-*.safetensors")


def is_inside(file: str) -> bool:
    """Tell whether a name in a manifest, which may be a stranger's, is that of a file in its folder."""
    return Path(file).name == file and file not in ("", ".", "..")


def require_format(path: Path, manifest: dict[str, Any], name: str, version: int) -> None:
    """Refuse a manifest of another kind, or of a version that is not known here."""
    if manifest.get("format") != name:
        raise StorageError(f"{path} must have format {name!r}, found {manifest.get('format')!r}")
    if manifest.get("version") != version:
        raise StorageError(
            f"{path} must have format version {version}, found {manifest.get('version')!r}; update pfge"
        )


def _parse_entries(path: Path, manifest: dict[str, Any]) -> list[Entry]:
    require_format(path, manifest, FORMAT, VERSION)
    members = manifest.get("members")
    if not isinstance(members, list):
        raise StorageError(f"{path} must list its members, found {type(members).__name__}")
    return [_parse_entry(path, member) for member in members]


def temperature_entries(temperatures: Temperatures) -> dict[str, Any]:
    """Return what a manifest says of temperatures."""
    members = temperatures.members
    return {
        "temperature": temperatures.pooled,
        "member_temperatures": None if members is None else list(members),
    }


def read_temperatures(path: Path, manifest: dict[str, Any], count: int) -> Temperatures:
    """Return the temperatures in a manifest of that many members, which one from before calibration lacks."""
    pooled = manifest.get("temperature", 1.0)
    members = manifest.get("member_temperatures")
    try:
        found = Temperatures(pooled, None if members is None else tuple(members))
    except (TypeError, ValueError):
        found = None
    if found is None or (found.members is not None and len(found.members) != count):
        raise StorageError(
            f"{path} must give temperatures above 0, one for each member or none, found {pooled!r} and "
            f"{members!r}"
        )
    return found


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
