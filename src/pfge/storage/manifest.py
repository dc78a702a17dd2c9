"""The manifest of an ensemble folder, and the input specification in it."""

import hashlib
import re
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

from pfge.calibration import Temperatures
from pfge.errors import InvalidValueError
from pfge.storage.files import (
    LARGEST_INPUT,
    LARGEST_RESIZE,
    LARGEST_SIZE,
    MANIFEST_BYTES,
    MOST_DIMENSIONS,
    MOST_MEMBERS,
    StorageError,
    checksum,
    is_leftover,
    json_text,
    measure_parts,
    parse_tensors,
    publish,
    read_bounded,
    read_json_object,
    remove_leftovers,
    temporary_file,
    tensor_file,
    write_json,
    write_parts,
)
from pfge.views import View, Views, require_few_views
from pfge.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Usage:
    """How inputs are made and what outputs are called, so that the training data is not needed.

    Every part may be left out. None of it is executed, and nothing is imported because of it.

    Args:
        classes: The names of the classes or labels, in the order of the model's outputs.
        mean: Of each channel of pictures, whose pixels are scaled to 0..1; subtracted from them.
        std: Of each channel; what they are then divided by.
        input_shape: Of one example, such as [C, H, W], if the model takes one tensor of numbers.
        resize: The shorter side of a picture in pixels, before its middle is taken.
        outputs: The number of outputs that the model is built with.
        channels: The number of channels or features that the model is built with.

    Raises:
        ValueError: A part is of another kind, or mean and std are not of one length.

    Example:
        >>> from pfge.storage.manifest import Usage
        >>> Usage(classes=("cat", "dog"), mean=(0.5,), std=(0.25,), input_shape=(1, 28, 28))
        Usage(classes=('cat', 'dog'), mean=(0.5,), std=(0.25,), input_shape=(1, 28, 28))
    """

    classes: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    input_shape: tuple[int, ...] | None = None
    resize: int | None = None
    outputs: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        if self.classes is not None and not all(isinstance(name, str) for name in self.classes):
            raise InvalidValueError(f"classes must be texts, got {self.classes!r}")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is not None and not all(isinstance(v, float | int) and _is_finite(v) for v in values):
                raise InvalidValueError(f"{name} must be finite numbers, got {values!r}")
        if len(self.mean or ()) != len(self.std or ()):
            raise InvalidValueError(
                f"mean and std must have as many numbers, got {self.mean!r} and {self.std!r}"
            )
        if not all(value > 0 for value in self.std or ()):
            raise InvalidValueError(f"std must be above 0, got {self.std!r}")
        for name in ("input_shape", "resize", "outputs", "channels"):
            value = getattr(self, name)
            sizes = value if isinstance(value, tuple) else () if value is None else (value,)
            if not all(type(size) is int and 0 < size <= LARGEST_SIZE for size in sizes):
                raise InvalidValueError(
                    f"{name} must be above 0 and at most {LARGEST_SIZE}, got {_shown(value)}"
                )
        self._require_sizes_that_go_together()

    def _require_sizes_that_go_together(self) -> None:
        """Refuse what would take much memory, or fail, once an input is made."""
        shape = self.input_shape
        if self.classes is not None and self.outputs is not None and len(self.classes) != self.outputs:
            raise InvalidValueError(
                f"classes must have a name for each output, got {len(self.classes)} names and "
                f"{self.outputs} outputs"
            )
        if shape is None:
            return
        if not is_small_input(shape):
            raise InvalidValueError(
                f"input_shape must have at most {MOST_DIMENSIONS} dimensions and {LARGEST_INPUT:,} numbers, "
                f"got {_shown(shape)}"
            )
        if self.mean is not None and len(shape) == 3 and len(self.mean) != shape[0]:
            raise InvalidValueError(
                f"mean must have a number for each channel of [C, H, W], got {len(self.mean)} for {shape}"
            )
        if self.resize is not None and self.resize > LARGEST_RESIZE * max(shape):
            raise InvalidValueError(
                f"resize must be at most {LARGEST_RESIZE} times the height of {shape}, got {self.resize}"
            )

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.given().items())
        return f"Usage({given})"

    def given(self) -> dict[str, Any]:
        """Return the parts that are not left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_manifest(cls, path: Path, entry: Any) -> "Usage":
        """Return the usage of a manifest's entry; an empty one if there is none.

        Raises:
            StorageError: The entry is of another kind.
        """
        if entry is None:
            return cls()
        known = {field.name for field in fields(cls)}
        try:
            if not isinstance(entry, dict):
                raise TypeError(f"got {entry!r}")
            # What a later version adds is left out.
            return cls(**{n: _as_tuple(n, value) for n, value in entry.items() if n in known})
        except (TypeError, ValueError) as error:
            raise StorageError(f"{path} must say in `usage` how inputs are made: {error}") from None


NO_USAGE = Usage()


def is_small_input(shape: Sequence[int]) -> bool:
    """Return whether a manifest may have inputs of a shape; larger ones are made from the data alone."""
    return len(shape) <= MOST_DIMENSIONS and prod(shape) <= LARGEST_INPUT


def _is_finite(value: float) -> bool:
    return -sys.float_info.max <= value <= sys.float_info.max  # whole numbers may be larger than any float


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _as_tuple(name: str, value: Any) -> Any:
    if name in ("classes", "mean", "std", "input_shape"):
        if not isinstance(value, list):
            raise InvalidValueError(f"{name} must be a list, got {value!r}")
        return tuple(value)
    return value


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
    return read_json_object(path / MANIFEST, MANIFEST_BYTES)


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


def require_few_members(path: Path, count: int) -> None:
    """Refuse a manifest of more members than any ensemble has: each is a forward pass, or many."""
    if count > MOST_MEMBERS:
        raise StorageError(f"{path} must list at most {MOST_MEMBERS:,} members, found {count:,}")


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
                require_few_views(len(views))
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
