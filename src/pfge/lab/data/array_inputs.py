"""Read inputs of a model from a NumPy file, for data that is not pictures."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pfge.lab.data.in_memory.image_set import DataError


def read_array_inputs(path: Path, shape: Sequence[int]) -> Tensor:
    """Return the examples of a .npy file as float32 inputs [N, ...].

    Args:
        path: The file; an array of one example, or of several along its first dimension.
        shape: Of one example.

    Raises:
        DataError: The file is missing, is not an array of numbers, is of another shape, or has numbers that
            are too large. NaN and infinity are for the model to replace.
    """
    try:
        array = np.load(path, allow_pickle=False)  # a pickle may execute anything
    except FileNotFoundError:
        raise DataError(f"{path} is missing; check the path") from None
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read as a .npy array of numbers: {error}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise DataError(f"{path} must be one .npy array of numbers, got {getattr(array, 'dtype', 'several')}")
    if array.shape == tuple(shape):
        array = array[None]
    if array.shape[1:] != tuple(shape):
        raise DataError(
            f"{path} must hold examples {['N', *shape]}, or one {list(shape)}, got {list(array.shape)}"
        )
    with np.errstate(over="ignore"):  # what overflows is refused by its value
        inputs = array.astype(np.float32)
    too_large = np.argwhere(np.isfinite(array) & ~np.isfinite(inputs))
    if len(too_large):
        first = tuple(too_large[0])
        raise DataError(
            f"{path} must hold numbers of float32, got {array[first]} in example {first[0]}, counted from 0; "
            "correct it, or leave such examples out"
        )
    return torch.from_numpy(inputs)
