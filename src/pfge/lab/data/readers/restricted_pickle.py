"""Pickles that hold nothing but plain values and numeric arrays; anything else is refused.

Nothing from the outside is ever imported or called: where a pickle asks for numpy's array builders
it gets the small stand-ins below, which only record what they are given.
"""

import io
import pickle
import pickletools
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from pfge.lab.data.in_memory.image_set import DataError
from pfge.storage.bounded_files import read_bounded

LARGEST = 1_000_000_000
MAX_DEPTH = 20
_NUMBERS = {"u1", "i1", "i4", "i8", "f4", "f8"}


class _DType:
    """The element type of an array."""

    __slots__ = ("code",)

    def __init__(self, code: str, *_: object) -> None:
        if code not in _NUMBERS:
            raise pickle.UnpicklingError(f"arrays may hold only {sorted(_NUMBERS)}, got {code!r}")
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] == ">":
            raise pickle.UnpicklingError("arrays must be little-endian")


class _Array:
    """The shape, element type and bytes of an array."""

    __slots__ = ("value",)

    def __init__(self, *_: object) -> None:
        self.value = np.empty(0, dtype=np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _DType, bool, str | bytes]) -> None:
        _, shape, dtype, in_columns, data = state
        raw = data.encode("latin-1") if isinstance(data, str) else data
        flat = np.frombuffer(raw, dtype=f"<{dtype.code}")
        if flat.size != prod(shape):
            raise pickle.UnpicklingError(f"an array of shape {shape} has {flat.size} elements")
        self.value = flat.reshape(shape, order="F" if in_columns else "C")


_STAND_INS: dict[tuple[str, str], object] = {
    # numpy 1 and 2 name the same function differently.
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): _DType,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        try:
            return _STAND_INS[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module_name}.{global_name}, which is not plain data"
            ) from None


def read_plain_pickle(path: Path) -> object:
    """Return the dicts, lists, strings, numbers and arrays of a pickle.

    Args:
        path: A pickle, of Python 2 or 3; byte strings of Python 2 become str.

    Raises:
        DataError: The file is damaged or asks for anything that is not plain data.
    """
    try:
        data = read_bounded(path, LARGEST)
        _require_bounded_memo(data)
        return _plain(_Reader(io.BytesIO(data), encoding="latin-1").load(), {}, MAX_DEPTH)
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can raise any error
        raise DataError(
            f"{path} was refused as a pickle of plain data: {error or type(error).__name__}; "
            "fetch it again from its official source"
        ) from error


def _require_bounded_memo(data: bytes) -> None:
    """Refuse a pickle that numbers its values higher than it has values.

    A reader makes room for all numbers up to the highest, so nine bytes could take all memory.
    """
    highest = operations = 0
    for operation, number, _ in pickletools.genops(data):
        operations += 1
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT"):
            highest = max(highest, int(number or 0))
    if highest > operations:
        raise pickle.UnpicklingError(f"it numbers a value {highest}, but has {operations} operations")


def _plain(value: object, seen: dict[int, object], depth: int) -> object:
    """Return a value with its arrays; `seen` has what was done by identity, as values may be shared."""
    if not depth:
        raise pickle.UnpicklingError(f"its values are nested deeper than {MAX_DEPTH}, or contain themselves")
    if isinstance(value, _Array):
        return value.value
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    if not isinstance(value, dict | list | tuple):
        raise pickle.UnpicklingError(f"it holds a {type(value).__name__}, which is not plain data")
    if id(value) not in seen:
        if isinstance(value, dict):
            seen[id(value)] = {key: _plain(item, seen, depth - 1) for key, item in value.items()}
        else:
            seen[id(value)] = type(value)(_plain(item, seen, depth - 1) for item in value)
    return seen[id(value)]
