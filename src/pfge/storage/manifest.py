"""The manifest of an ensemble folder: which files count, what they must be, and what is known of them."""

import hashlib
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pfge.calibration import Temperatures
from pfge.storage.atomic_files import is_leftover, publish, remove_leftovers, temporary_file
from pfge.storage.files import (
    StorageError,
    checksum,
    json_text,
    measure_parts,
    parse_tensors,
    read_json_object,
    write_json,
    write_parts,
)
from pfge.storage.tensor_bytes import tensor_file
from pfge.storage.usage import Usage
from pfge.views import View, Views
from pfge.weights import Weights

MANIFEST = "manifest.json"
ADAPTERS = "pfge-adapters"
"""The format of a folder of adapters, which `pfge.integrations.peft` reads and writes."""
BESIDE = ("cascade.json", "evaluation.json")
"""Files that commands write beside a manifest."""
_FILE = re.compile(r"(member|packed|shared)-[0-9a-f]{16}\.safetensors")
_ADAPTER = re.compile(r"adapter-\d+-[0-9a-f]{8}")


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file that a manifest names, as it must be."""

    file: str
    bytes: int
    sha256: str


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


def commit_manifest(
    path: Path, manifest: dict[str, Any], entries: Sequence[FileEntry], folders: Collection[str] = ()
) -> None:
    """Replace a folder's manifest by one that names these files, and then remove what does not count.

    Args:
        path: The folder.
        manifest: What it says from now on.
        entries: The files that count.
        folders: The folders of adapters that count.
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


def read_verified(path: Path, entry: FileEntry, what: str) -> tuple[Weights, dict[str, str]]:
    """Return the tensors and the metadata of a file as the manifest says it is, as a copy in memory.

    What is checked is what is returned, whatever becomes of the file.
    """
    data = verify_file(path, entry, what).read_bytes()
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise StorageError(f"{path / entry.file} was changed while it was read; read it again")
    return parse_tensors(data, path / entry.file)


def prepare_for_overwrite(path: Path) -> None:
    """Refuse a folder that holds other files than those of an ensemble."""
    if path.exists() and not path.is_dir():
        raise StorageError(f"{path} must be a folder, but it is a file; choose another name")
    if not path.is_dir():
        return
    # One listing: another writer may put its manifest there between two looks.
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


def is_inside(file: str) -> bool:
    """Return whether a name in a manifest, which may be a stranger's, is that of a file in its folder."""
    return Path(file).name == file and file not in ("", ".", "..")


def require_format(path: Path, manifest: dict[str, Any], name: str, version: int) -> None:
    """Refuse a manifest of another kind, or of a version that is not known here."""
    if (found := manifest.get("format")) != name:
        remedy = "; use pfge.integrations.peft.load_adapters" if found == ADAPTERS else ""
        raise StorageError(f"{path} must have format {name!r}, found {found!r}{remedy}")
    if manifest.get("version") != version:
        raise StorageError(
            f"{path} must have format version {version}, found {manifest.get('version')!r}; update pfge"
        )


def temperature_entries(temperatures: Temperatures) -> dict[str, Any]:
    """Return what a manifest says of temperatures, and of weights if there are any."""
    members, weights = temperatures.members, temperatures.weights
    entries: dict[str, Any] = {
        "temperature": temperatures.pooled,
        "member_temperatures": None if members is None else list(members),
    }
    return entries if weights is None else {**entries, "member_weights": list(weights)}


def task_entries(task: dict[str, Any] | None) -> dict[str, Any]:
    """Return what a manifest says of a task: nothing of the default one."""
    return {} if task is None else {"task": task}


def usage_entries(usage: Usage) -> dict[str, Any]:
    """Return what a manifest says of usage: nothing of an empty one."""
    return {"usage": given} if (given := usage.given()) else {}


def views_entries(views: Views | None) -> dict[str, Any]:
    """Return what a manifest says of the views of each picture: nothing if there is only the picture."""
    return {} if views is None else {"views": asdict(views)}


def read_views(path: Path, manifest: dict[str, Any]) -> Views | None:
    """Return the views in a manifest, which may lack them."""
    match manifest.get("views"):
        case None:
            return None
        case {"views": list(views), "border": list(border)}:
            try:
                return Views(tuple(View(**view) for view in views), tuple(border))
            except (TypeError, ValueError) as error:
                raise StorageError(f"{path} must say in `views` how pictures are seen: {error}") from None
        case found:
            raise StorageError(f"{path} must give the views and the border of `views`, found {found!r}")


def _of_labels(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def read_temperatures(path: Path, manifest: dict[str, Any], count: int) -> Temperatures:
    """Return temperatures and weights in a manifest of that many members, which may lack them.

    A list in the place of a number has one for each label.
    """
    pooled = manifest.get("temperature", 1.0)
    members, weights = manifest.get("member_temperatures"), manifest.get("member_weights")
    try:
        found = Temperatures(
            _of_labels(pooled),
            None if members is None else tuple(map(_of_labels, members)),
            None if weights is None else tuple(weights),
        )
        found.require_members(count)
    except (TypeError, ValueError):
        said = "" if weights is None else f", and weights above 0 with the sum 1, found {weights!r}"
        raise StorageError(
            f"{path} must give temperatures above 0, one for each member or none, found {pooled!r} and "
            f"{members!r}{said}"
        ) from None
    return found
