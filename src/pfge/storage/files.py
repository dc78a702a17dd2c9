"""Files that are never seen half-written: tensors as safetensors, everything else as JSON."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from pfge.storage.tensor_bytes import tensor_file
from pfge.weights import Weights


class StorageError(ValueError):
    """A file or folder that is missing, damaged or of another kind; the message names it.

    It is a `ValueError`. Files are read without executing anything in them, whoever wrote them.

    Example:
        >>> import pfge
        >>> try:
        ...     pfge.load_checkpoint("missing.checkpoint")
        ... except pfge.StorageError as error:
        ...     print(error)
        missing.checkpoint is missing; check the path
    """


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; it takes the real name once its bytes are on disk.

    A crash or an error leaves the old file, or none, under the real name.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON for people and programs, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that must hold an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StorageError(f"{path} is missing; check the path") from None
    except ValueError as error:
        raise StorageError(f"{path} must be JSON, but {error}; it may be truncated or another file") from None
    if not isinstance(value, dict):
        raise StorageError(f"{path} must hold a JSON object, found {type(value).__name__}")
    return value


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors as one safetensors file, atomically and without copying those on the CPU."""
    with atomic_path(path) as temporary, temporary.open("wb", buffering=1 << 20) as file:
        for part in tensor_file(tensors, metadata):
            file.write(part)


def read_tensors(path: Path) -> tuple[Weights, dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file; nothing in it is executed."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise StorageError(f"{path} is missing; check the path") from None
    except SafetensorError as error:
        raise StorageError(f"{path} must be a whole safetensors file, but {error}") from None


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


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
