"""An ensemble on disk: one safetensors file a member, and a manifest that is replaced last."""

from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from pfge.members import LazyMembers
from pfge.storage import (
    StorageError,
    checksum,
    read_json_object,
    read_shapes,
    read_tensors,
    write_json,
    write_tensors,
)
from pfge.weights import Weights

FORMAT = "pfge-ensemble"
VERSION = 1
MANIFEST = "manifest.json"
DRAFT = "member.draft"


@dataclass(frozen=True)
class Entry:
    """One member in the manifest; `iteration` is None where a member belongs to no single one."""

    file: str
    iteration: int | None
    bytes: int
    sha256: str


class EnsembleFolder:
    """The members in a folder, in order; the manifest alone says which files count.

    Args:
        path: The folder.
        method: How the members were made, for people.
        model: How the module is built, for people: nothing is ever imported from it.
        temperature: Of the members pooled.
        member_temperatures: Of each of them.
    """

    def __init__(
        self,
        path: Path,
        *,
        method: str | None = None,
        model: str | None = None,
        temperature: float = 1.0,
        member_temperatures: list[float] | None = None,
    ):
        self.path = path
        self.method = method
        self.model = model
        self.temperature = temperature
        self.member_temperatures = member_temperatures
        self.entries: list[Entry] = []

    @classmethod
    def open(cls, path: Path) -> "EnsembleFolder":
        """Read a folder's manifest and check every member against it, byte by byte.

        Raises:
            StorageError: Something is missing, damaged or foreign; the message says which file,
                what was expected and what was found.
        """
        if not path.is_dir():
            raise StorageError(f"{path} must be an ensemble folder, but no such folder exists")
        if not (path / MANIFEST).exists():
            raise StorageError(f"{path} is not an ensemble folder: it has no {MANIFEST}")
        manifest = read_json_object(path / MANIFEST)
        folder = cls(path, method=manifest.get("method"), model=manifest.get("model"))
        folder.entries = _parse_entries(path / MANIFEST, manifest)
        _read_temperatures(folder, manifest)
        folder._verify()
        return folder

    @property
    def iterations(self) -> list[int | None]:
        """The iteration of each member."""
        return [entry.iteration for entry in self.entries]

    def write(self, weights: Weights, iteration: int | None) -> Entry:
        """Write one member's file, which does not count until `commit` names it."""
        self.path.mkdir(parents=True, exist_ok=True)
        draft = self.path / DRAFT
        write_tensors(draft, weights)
        digest = checksum(draft)
        # The digest in the name: a new member never overwrites a file that the old manifest names.
        file = f"member-{digest[:16]}.safetensors"
        draft.replace(self.path / file)
        return Entry(file, iteration, (self.path / file).stat().st_size, digest)

    def commit(self, entries: list[Entry]) -> None:
        """Make these the folder's members, all at once, and remove files that no longer count."""
        self.path.mkdir(parents=True, exist_ok=True)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "method": self.method,
            "model": self.model,
            "temperature": self.temperature,
            "member_temperatures": self.member_temperatures,
            "members": [asdict(entry) for entry in entries],
        }
        write_json(self.path / MANIFEST, manifest)
        self.entries = list(entries)
        counted = {entry.file for entry in entries}
        for file in self.path.iterdir():
            if _is_ours(file) and file.name not in counted:
                file.unlink(missing_ok=True)

    def append(self, weights: Weights, iteration: int | None) -> None:
        """Write one more member."""
        self.commit([*self.entries, self.write(weights, iteration)])

    def members(self) -> LazyMembers:
        """Return the members as they are now, each read when it is asked for."""
        files = [self.path / entry.file for entry in self.entries]
        return LazyMembers(len(files), lambda index: read_tensors(files[index])[0])

    def _verify(self) -> None:
        shapes: dict[str, list[int]] | None = None
        for number, entry in enumerate(self.entries, 1):
            file = self.path / entry.file
            if not file.is_file():
                raise StorageError(f"{file} is missing, but {MANIFEST} names it as member {number}")
            size = file.stat().st_size
            if size != entry.bytes:
                raise StorageError(f"{file} must have {entry.bytes} bytes, found {size}: it is truncated")
            digest = checksum(file)
            if digest != entry.sha256:
                raise StorageError(
                    f"{file} must have SHA-256 {entry.sha256}, found {digest}: it is corrupted"
                )
            found = read_shapes(file)
            shapes = shapes or found
            if found != shapes:
                differing = sorted(n for n in found.keys() | shapes if found.get(n) != shapes.get(n))
                raise StorageError(
                    f"{file} must have the first member's shapes, but differs in {differing[:5]}"
                )


def prepare_for_overwrite(path: Path) -> None:
    """Refuse a folder whose files are somebody else's."""
    if path.exists() and not path.is_dir():
        raise StorageError(f"{path} must be a folder, but it is a file; choose another name")
    if path.is_dir() and not (path / MANIFEST).exists() and not all(map(_is_ours, path.iterdir())):
        raise StorageError(f"{path} holds other files and no ensemble; choose an empty or new folder")


def _is_ours(file: Path) -> bool:
    """Tell whether the file is a member or what a process that was killed may have left of one."""
    return file.name == DRAFT or file.match("member-*.safetensors") or file.match(".*.part")


def _parse_entries(path: Path, manifest: dict[str, Any]) -> list[Entry]:
    if manifest.get("format") != FORMAT:
        raise StorageError(f"{path} must have format {FORMAT!r}, found {manifest.get('format')!r}")
    if manifest.get("version") != VERSION:
        raise StorageError(
            f"{path} must have format version {VERSION}, found {manifest.get('version')!r}; update pfge"
        )
    members = manifest.get("members")
    if not isinstance(members, list):
        raise StorageError(f"{path} must list its members, found {type(members).__name__}")
    return [_parse_entry(path, member) for member in members]


def _read_temperatures(folder: EnsembleFolder, manifest: dict[str, Any]) -> None:
    """Take the temperatures over, which a manifest without calibration need not have."""
    pooled = manifest.get("temperature", 1.0)
    members = manifest.get("member_temperatures")
    values = [pooled, *(members if isinstance(members, list) else [])]
    right_kinds = all(isinstance(value, int | float) and 0 < value < inf for value in values)
    if not right_kinds or (members is not None and len(values) != len(folder.entries) + 1):
        raise StorageError(
            f"{folder.path / MANIFEST} must give temperatures above 0, one for each member or none, found "
            f"{pooled!r} and {members!r}"
        )
    folder.temperature = pooled
    folder.member_temperatures = members


def _parse_entry(path: Path, member: Any) -> Entry:
    match member:
        case {
            "file": str(file),
            "iteration": int() | None as iteration,
            "bytes": int(size),
            "sha256": str(digest),
        }:
            # A manifest from a stranger must not name files outside its folder.
            if Path(file).name == file and file not in ("", ".", ".."):
                return Entry(file, iteration, size, digest)
    raise StorageError(f"{path} must give each member's file, iteration, bytes and sha256, found {member!r}")
