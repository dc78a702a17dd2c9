"""Pickles that hold nothing but plain values and numeric arrays; anything else is refused.

Nothing from the outside is ever imported or called: where a pickle asks for numpy's array builders
it gets the small stand-ins below, which only record what they are given.
"""

import pickle
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from pfge.lab.data.in_memory.image_set import DataError

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
        with path.open("rb") as file:
            return _with_arrays(_Reader(file, encoding="latin-1").load())
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can raise any error
        raise DataError(
            f"{path} was refused as a pickle of plain data: {error or type(error).__name__}; "
            "fetch it again from its official source"
        ) from error


def _with_arrays(value: object) -> object:
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, dict):
        return {key: _with_arrays(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_with_arrays, value))
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    raise pickle.UnpicklingError(f"it holds a {type(value).__name__}, which is not plain data")
