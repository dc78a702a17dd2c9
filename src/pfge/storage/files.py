"""Files of tensors, as safetensors, and of everything else, as JSON."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pfge.storage.atomic_files import atomic_path
from pfge.storage.bounded_files import UnreadableFileError, read_bounded
from pfge.storage.seals import BrokenSealError, seal, unseal
from pfge.storage.tensor_bytes import tensor_file
from pfge.weights import Weights


class StorageError(ValueError):
    """A file or folder that is missing, damaged or of another kind; the message names it.

    It is a `ValueError`. Reading a file never executes anything in it.

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


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that must hold an object, and check its content if it states a SHA-256.

    Raises:
        StorageError: The file is missing, damaged or another one.
    """
    try:
        value = json.loads(read_bounded(path).decode())
    except FileNotFoundError:
        raise StorageError(f"{path} is missing; check the path") from None
    except UnreadableFileError as error:
        raise StorageError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} must be JSON, but {error}; it may be truncated or another file") from None
    if not isinstance(value, dict):
        raise StorageError(f"{path} must hold a JSON object, found {type(value).__name__}")
    try:
        return unseal(value)
    except BrokenSealError as error:
        raise StorageError(f"{path} is not as it was written: {error}") from None


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors as one safetensors file, atomically and without copying those on the CPU."""
    with atomic_path(path) as temporary:
        write_parts(temporary, tensor_file(tensors, metadata))


def write_parts(path: Path, parts: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a file in parts, and return the size and the SHA-256 of what was written."""
    with path.open("wb", buffering=1 << 20) as file:
        return measure_parts(parts, file.write)


def measure_parts(
    parts: Iterable[bytes | memoryview], write: Callable[[bytes | memoryview], object] | None = None
) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file in parts, each of which is also written if asked to."""
    size, digest = 0, hashlib.sha256()
    for part in parts:
        if write is not None:
            write(part)
        size += len(part)
        digest.update(part)
    return size, digest.hexdigest()


def read_tensors(path: Path) -> tuple[Weights, dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file; nothing in it is executed."""
    if path.exists() and not path.is_file():
        raise StorageError(f"{path} must be a regular file, but is a pipe, a device or a folder")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise StorageError(f"{path} is missing; check the path") from None
    except SafetensorError as error:
        raise StorageError(f"{path} must be a whole safetensors file, but {error}") from None


def parse_tensors(data: bytes, path: Path) -> tuple[Weights, dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file that is in memory; `path` is for errors."""
    try:
        tensors = safetensors.torch.load(data)
    except SafetensorError as error:
        raise StorageError(f"{path} must be a whole safetensors file, but {error}") from None
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, header.get("__metadata__", {})


def read_shapes(path: Path) -> dict[str, list[int]]:
    """Read the names and shapes in a safetensors file without its data."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise StorageError(f"{path} must be a whole safetensors file, but {error}") from None


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, as sha256sum prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
