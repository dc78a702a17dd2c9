"""Files: atomic, of bounded size and with digests; tensors as safetensors bytes."""

import errno
import hashlib
import json
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from io import BufferedReader
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pfge.errors import InvalidValueError
from pfge.weights import Weights

if sys.platform != "win32":
    import fcntl

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]+\.part")
_TEMPORARY_BEFORE = re.compile(r"\.tmp[A-Za-z0-9]{6}|member\.draft")
"""Names of temporary tensor files from when safetensors wrote them."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it once its bytes are on disk.

    After a crash or an error, the old file is still there. Temporary files of killed writers are removed.
    """
    for left in _temporary_files_of(path):
        _remove_if_left(left)
    with temporary_file(path.parent, path.name) as temporary:
        yield temporary
        publish(temporary, path)


@contextmanager
def temporary_file(folder: Path, name: str) -> Iterator[Path]:
    """Yield the path of a new file to write to, and to `publish`; after an error it is removed."""
    path, descriptor = _create(folder, name)
    try:
        yield path
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def publish(temporary: Path, path: Path) -> None:
    """Rename a temporary file to another name in its folder, once its bytes are on disk."""
    _flush(temporary)
    temporary.replace(path)
    _flush(path.parent)


def is_leftover(name: str) -> bool:
    """Return whether a file of this name is temporary; it is a leftover once its writer is gone."""
    return any(form.fullmatch(name) for form in (_TEMPORARY, _TEMPORARY_BEFORE))


def remove_leftovers(folder: Path, *, below: bool = False) -> None:
    """Remove temporary files without a living writer from a folder, and with `below` from its subfolders."""
    for parent, folders, files in os.walk(folder):  # it does not follow links
        for name in filter(is_leftover, files):
            _remove_if_left(Path(parent, name))
        if not below:
            folders.clear()


def make_folder(path: Path) -> None:
    """Make a folder and its parents unless they exist; its name is on disk when this returns."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Wait until the names of files in a folder are on disk, after some were made or renamed."""
    _flush(path)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Make a folder unless it exists, and let one process at a time write to it while the others wait.

    On a file system that cannot lock folders, all of them write at once.
    """
    make_folder(folder)
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _create(folder: Path, name: str) -> tuple[Path, int]:
    """Return a new temporary file and a descriptor that holds its lock."""
    while True:
        path = folder / f".{name}.{secrets.token_hex(4)}.part"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        # Another process may have removed it as a leftover before it was locked.
        if _lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)


def _temporary_files_of(path: Path) -> list[Path]:
    forms = ((file, _TEMPORARY.fullmatch(file.name)) for file in path.parent.iterdir())
    return [file for file, form in forms if form and form["name"] == path.name]


def _remove_if_left(path: Path) -> None:
    if sys.platform == "win32":  # where no lock tells whether there is a writer
        return
    with suppress(OSError):  # gone by now, a link, a folder, or another user's
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode) and _lock(descriptor):
                path.unlink()
        finally:
            os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Lock a file for this process. Return False if another holds it, None if files cannot be locked."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


LIMIT = 64_000_000
"""Largest text file that is read, in bytes; results have a few kilobytes a line."""
DATA_LIMIT = 1_000_000_000
"""Largest file of a data set that is read whole, in bytes."""


class UnreadableFileError(OSError):
    """The file is too large to be read, or it is a pipe, a socket, a device or a folder."""


def regular_only(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file and return its descriptor, like `os.open`, but refuse everything else.

    Use it as an opener: `open(path, "a", opener=regular_only)`.

    Raises:
        FileNotFoundError: The file is missing.
        UnreadableFileError: The path is not a regular file.
    """
    # Without O_NONBLOCK, opening a pipe would wait for its other end.
    waits = getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags | waits | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        # A socket, or a pipe, a device or a folder that is opened for writing.
        if error.errno in (errno.ENXIO, errno.ENODEV, errno.EISDIR):
            raise _not_regular(path) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _not_regular(path)
        if waits:
            os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading, with the errors of `regular_only`."""
    return open(path, "rb", opener=regular_only)


def require_regular(path: Path) -> Path:
    """Return the path of a regular file, for a library that opens files by itself.

    Errors are the same as from `regular_only`.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise _not_regular(path)
    return path


def read_bounded(path: Path, limit: int = LIMIT) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        FileNotFoundError: The file is missing.
        UnreadableFileError: The path is not a regular file, or the file is larger than the limit.
    """
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > limit:
            raise UnreadableFileError(
                f"{path} must have at most {limit:,} bytes, but has {size:,}; check that it is the right file"
            )
        data = file.read(limit + 1)
    if len(data) > limit:  # it grows while it is read
        raise UnreadableFileError(f"{path} must have at most {limit:,} bytes, but has more")
    return data


def _not_regular(path: str | os.PathLike[str]) -> UnreadableFileError:
    return UnreadableFileError(
        f"{os.fspath(path)} must be a regular file, but is a pipe, a socket, a device or a folder"
    )


LARGEST_INT = 2**63 - 1
"""Largest whole number in JSON and in configs."""
MANIFEST_BYTES = 16_000_000
"""Largest manifest, in bytes."""
MOST_MEMBERS = 10_000
"""Most members in a manifest, and most periods in a config."""
MOST_SEEDS = 1000
"""Most seeds in a config."""
LARGEST_SIZE = 1 << 24
"""Largest size in an input specification."""
LARGEST_INPUT = 1 << 22
"""Most numbers in one input of an input specification; activations may take a hundred times as many."""
MOST_DIMENSIONS = 8
"""Most dimensions of one input."""
LARGEST_RESIZE = 4
"""Largest ratio of the size to which an image is resized to the size of its crop."""
LONGEST_FILE_NAME = 200
"""Longest name that files and folders get, in bytes; file systems allow 255, and suffixes are added."""


def is_file_name(name: str) -> bool:
    r"""Return whether a stranger's name is that of one file in a folder, here and on other systems.

    >>> [is_file_name(name) for name in ("demo", "../demo", "C:demo", ".demo", "demo\n", "")]
    [True, False, False, False, False, False]
    """
    is_one = PureWindowsPath(name).name == PurePosixPath(name).name == name
    # Half of a surrogate pair cannot be encoded; it is not printable either.
    is_plain = name.isprintable() and not name.startswith(".")
    return bool(name) and is_one and is_plain and len(name.encode()) <= LONGEST_FILE_NAME


def parse_json(text: bytes | str) -> Any:
    """Return the value of a JSON text, whose whole numbers must have at most 64 bits.

    Raises:
        ValueError: The text is not JSON, or has a larger number.
        RecursionError: The values are nested too deep.

    >>> parse_json('{"seed": 1}')
    {'seed': 1}
    """
    return json.loads(text, parse_int=_parse_int)


def is_large_int(value: object) -> bool:
    """Return whether a value is a whole number of more than 64 bits, which torch and floats cannot hold."""
    return isinstance(value, int) and not -LARGEST_INT - 1 <= value <= LARGEST_INT


def _parse_int(digits: str) -> int:
    value = int(digits) if len(digits) <= 20 else LARGEST_INT + 1
    if is_large_int(value):
        shown = digits if len(digits) <= 20 else f"{digits[:20]}..."
        raise InvalidValueError(f"a whole number must have at most 64 bits, got {shown}")
    return value


# In the order of a file: wide numbers come first, so all numbers lie at multiples of their size.
_TYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TYPES_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in _TYPES}
"""Types of numbers that a file can hold, by their names in torch."""
METADATA = "__metadata__"
"""Key in a file's header that does not belong to a tensor."""
_PLACES = {dtype: place for place, dtype in enumerate(_TYPES)}


def tensor_file(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file in chunks.

    Raises:
        ValueError: The format cannot hold one of the tensors.
    """
    if METADATA in tensors:
        raise InvalidValueError(
            f"a tensor in a safetensors file must not be named {METADATA!r}, which the format reserves, got "
            "a tensor of that name; rename the parameter or buffer"
        )
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.dtype not in _TYPES:
            raise InvalidValueError(
                f"a safetensors file holds dense tensors of numbers, got {name!r} of {tensor.dtype} and "
                f"{tensor.layout} on {tensor.device}; convert it first"
            )
    names = sorted(tensors, key=lambda name: (_PLACES[tensors[name].dtype], name))
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": _TYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield raw_bytes(tensors[name])


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's numbers in order, low byte first; a contiguous tensor on the CPU is not copied."""
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    raw = dense.as_strided((dense.numel(),), (1,)).view(
        torch.uint8
    )  # a tensor of one number may have any stride
    if sys.byteorder == "big":
        width = tensor.element_size() // (2 if tensor.is_complex() else 1)
        raw = raw.reshape(-1, width).flip(1).reshape(-1)
    return raw.numpy().data


# Files that people may edit state the digest of their own content: JSON under its last key, other text in its
# first line. The digest of a file that only pfge writes is in a manifest, or in a record beside the file.

KEY = "content_sha256"
DIGEST_KEYS = ("sha256", "members")
"""Other keys that may come last in an object without a seal, and have digests of other things."""
MOST_OF_A_DIGEST = re.compile("[0-9a-f]{24}")
TEXT_SEAL = "# sha256 of what follows: "
"""How the first line of a sealed text begins."""


class BrokenSealError(InvalidValueError):
    """The content of a file differs from the content that was sealed.

    Args:
        remedy: How the user keeps an edit.
    """

    def __init__(self, remedy: str):
        super().__init__(
            "its content does not have the SHA-256 that it states, so it is damaged or was edited; after an "
            f"edit of your own, {remedy}"
        )


def seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object that states the SHA-256 of everything else in it, under its last key."""
    return {**value, KEY: content_digest(value)}


def is_sealed(value: Mapping[str, Any]) -> bool:
    """Return whether a JSON object states a SHA-256; older versions of pfge wrote none."""
    return KEY in value


def unseal(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object without the SHA-256 that it may state.

    Raises:
        BrokenSealError: Its content has another SHA-256.
    """
    content = {key: item for key, item in value.items() if key != KEY}
    if value[KEY] != content_digest(content) if is_sealed(value) else _has_a_damaged_key(content):
        raise BrokenSealError(f"remove {KEY}")
    return content


def _has_a_damaged_key(content: Mapping[str, Any]) -> bool:
    """Return whether the key of a seal seems to be damaged, so that the object does not pass for unsealed."""
    if get_close_matches(KEY, content, cutoff=0.8):
        return True
    last, item = list(content.items())[-1] if content else ("", None)  # a seal is written last
    return last not in DIGEST_KEYS and isinstance(item, str) and MOST_OF_A_DIGEST.search(item) is not None


def content_digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of everything in a JSON object except the digest that it may state."""
    # The digest covers values, not text, because spaces and the spelling of a number may change.
    content = {key: item for key, item in value.items() if key != KEY}
    return _digest_of_text(json.dumps(content))


def seal_text(text: str) -> str:
    """Return a text, such as TOML, after a comment with its SHA-256."""
    return f"{TEXT_SEAL}{_digest_of_text(text)}\n{text}"


def is_sealed_text(text: str) -> bool:
    """Return whether the first line of a text states a SHA-256, even if that line is damaged."""
    return re.match(rf"#.*(sha256|[0-9a-f]{{64}})|{TEXT_SEAL}", text) is not None


def require_unbroken_text(text: str) -> None:
    """Compare a text with the SHA-256 in its first line, if there is one.

    Raises:
        BrokenSealError: It has another SHA-256.
    """
    first, _, rest = text.partition("\n")
    if is_sealed_text(text) and first != TEXT_SEAL + _digest_of_text(rest):
        raise BrokenSealError("remove its first line")


def _digest_of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class StorageError(InvalidValueError):
    """A file or folder is missing, damaged or of another kind; the message names it.

    Reading a file never executes anything in it.

    Example:
        >>> import pfge
        >>> try:
        ...     pfge.load_checkpoint("missing.checkpoint")
        ... except pfge.StorageError as error:
        ...     print(error)
        missing.checkpoint is missing; check the path
    """


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def json_text(value: Mapping[str, Any]) -> str:
    """Return an object as JSON for people and programs, with the SHA-256 of its content."""
    return json.dumps(seal(value), indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as JSON with the SHA-256 of its content, atomically."""
    write_text(path, json_text(value))


def read_json_object(path: Path, limit: int = LIMIT) -> dict[str, Any]:
    """Read a JSON file that must hold an object, and check its content if it states a SHA-256.

    Raises:
        StorageError: The file is missing, damaged, or not a JSON object.
    """
    try:
        value = parse_json(read_bounded(path, limit).decode())
    except FileNotFoundError:
        raise StorageError(f"{path} is missing; check the path") from None
    except UnreadableFileError as error:
        raise StorageError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"{path} must be JSON, but {error}; it may be truncated or the wrong file"
        ) from None
    if not isinstance(value, dict):
        raise StorageError(f"{path} must hold a JSON object, found {type(value).__name__}")
    try:
        return unseal(value)
    except BrokenSealError as error:
        raise StorageError(f"{path} is not as it was written: {error}") from None


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors as one safetensors file, atomically and without copying tensors on the CPU."""
    with atomic_path(path) as temporary:
        write_parts(temporary, tensor_file(tensors, metadata))


def write_parts(path: Path, parts: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a file in chunks, and return its size and SHA-256."""
    with path.open("wb", buffering=1 << 20) as file:
        return measure_parts(parts, file.write)


def measure_parts(
    parts: Iterable[bytes | memoryview], write: Callable[[bytes | memoryview], object] | None = None
) -> tuple[int, str]:
    """Return the size and SHA-256 of a file's chunks, and pass each to `write` if given."""
    size, digest = 0, hashlib.sha256()
    for part in parts:
        if write is not None:
            write(part)
        size += len(part)
        digest.update(part)
    return size, digest.hexdigest()


def read_tensors(path: Path) -> tuple[Weights, dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file; nothing in it is executed."""
    try:
        with safe_open(require_regular(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise StorageError(f"{path} is missing; check the path") from None
    except UnreadableFileError as error:
        raise StorageError(str(error)) from None
    except SafetensorError as error:
        raise StorageError(f"{path} must be a whole safetensors file, but {error}") from None


def parse_tensors(data: bytes, path: Path) -> tuple[Weights, dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file that is in memory; `path` is for errors."""
    try:
        tensors = safetensors.torch.load(data)
    except SafetensorError as error:
        raise StorageError(f"{path} must be a whole safetensors file, but {error}") from None
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, header.get(METADATA, {})


def read_shapes(path: Path) -> dict[str, list[int]]:
    """Read the names and shapes in a safetensors file without its data."""
    try:
        with safe_open(require_regular(path), framework="pt") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise StorageError(f"{path} must be a whole safetensors file, but {error}") from None


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, as sha256sum prints it."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_digest(
    path: Path, sha256: str, source: str, *, size: int | None = None, remedy: str = "restore it"
) -> Path:
    """Return the path of a file after comparing its bytes with a digest that is stated elsewhere.

    Args:
        path: The file.
        sha256: SHA-256 of the file.
        source: Where the digest is stated, for an error about a missing file.
        size: Size of the file; None if it is not stated.
        remedy: Advice to the user whose file has other bytes.

    Raises:
        StorageError: The file is missing, or has other bytes.
    """
    if not path.is_file():
        raise StorageError(f"{path} is missing, but {source}")
    if size is not None and (found := path.stat().st_size) != size:
        raise StorageError(f"{path} must have {size} bytes, found {found}: it is truncated")
    if (digest := checksum(path)) != sha256:
        raise StorageError(
            f"{path} must have SHA-256 {sha256}, found {digest}: it is damaged or was replaced; {remedy}"
        )
    return path


SUFFIX = ".sha256"
_LONGEST = 1000


def record_of(path: Path) -> Path:
    """Return the file that states the SHA-256 of a file."""
    return path.with_name(path.name + SUFFIX)


def write_recorded(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as one safetensors file, after the file that states its SHA-256.

    A kill between the two leaves no file without a record, so one without is from an older version.
    """
    _, digest = measure_parts(tensor_file(tensors))
    write_text(record_of(path), f"{digest}  {path.name}\n")
    write_tensors(path, tensors)


def read_recorded(path: Path) -> Weights:
    """Read the tensors of a file after comparing it with its record.

    Raises:
        StorageError: The file is missing or damaged.
    """
    require_as_recorded(path)
    return read_tensors(path)[0]


def require_as_recorded(path: Path) -> bool:
    """Compare a file with its record, and return whether there is a record.

    Raises:
        StorageError: The file differs from its record, or the record is malformed.
    """
    record = record_of(path)
    try:
        text = read_bounded(record, _LONGEST).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return False
    except UnreadableFileError as error:
        raise StorageError(str(error)) from None
    found = re.fullmatch(r"([0-9a-f]{64})  (.+)\n", text)
    if not found or found[2] != path.name:
        raise StorageError(
            f"{record} must state the SHA-256 of {path.name} as sha256sum prints it; it is damaged"
        )
    remedy = f"restore it, or remove {record.name} if the file is yours"
    require_digest(path, found[1], f"{record.name} states its SHA-256", remedy=remedy)
    return True
