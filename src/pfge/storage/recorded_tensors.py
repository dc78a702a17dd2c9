"""Files of tensors whose SHA-256 is in a file beside them, as sha256sum prints it."""

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from pfge.storage.bounded_files import UnreadableFileError, read_bounded
from pfge.storage.files import StorageError, checksum, measure_parts, read_tensors, write_tensors, write_text
from pfge.storage.tensor_bytes import tensor_file
from pfge.weights import Weights

SUFFIX = ".sha256"
_LONGEST = 1000


def record_of(path: Path) -> Path:
    """Return the file that states the SHA-256 of a file."""
    return path.with_name(path.name + SUFFIX)


def write_recorded(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as one safetensors file, after the file that states its SHA-256.

    A kill between the two leaves no file without a record, so one without is that of an older version.
    """
    _, digest = measure_parts(tensor_file(tensors))
    write_text(record_of(path), f"{digest}  {path.name}\n")
    write_tensors(path, tensors)


def read_recorded(path: Path) -> Weights:
    """Read the tensors of a file, if it is as it was written.

    Raises:
        StorageError: It is missing or damaged.
    """
    require_as_recorded(path)
    return read_tensors(path)[0]


def require_as_recorded(path: Path) -> bool:
    """Return whether there is a record of a file, which is then as it was written.

    Raises:
        StorageError: It is not, or the record is none.
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
    if not path.is_file():
        raise StorageError(f"{path} is missing, but {record.name} states its SHA-256")
    if (digest := checksum(path)) != found[1]:
        raise StorageError(
            f"{path} must have SHA-256 {found[1]}, found {digest}: it is damaged, or was replaced; restore "
            f"it, or remove {record.name} if it is yours"
        )
    return True
