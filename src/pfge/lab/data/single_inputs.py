"""Inputs for prediction read from image files and NumPy files."""

import os
from collections.abc import Sequence
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import MAGIC_PREFIX, read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray
from torch import Tensor

from pfge.errors import InvalidValueError
from pfge.lab.data import DataError, DataPart, ImageSet, Normalization
from pfge.storage.files import LARGEST_INT, UnreadableFileError, open_regular

MOST_SHOWN = 60


def read_array_inputs(path: Path, shape: Sequence[int]) -> Tensor:
    """Return the examples of a .npy file as float32 inputs [N, ...].

    Args:
        path: The file; an array of one example, or of several along its first dimension.
        shape: Shape of one example.

    Raises:
        DataError: The file is missing, is not an array of numbers, has another shape, or has numbers that are
            too large. NaN and infinity are allowed, because the model may replace them.
    """
    try:
        with open_regular(path) as file:
            array = _read_array(file)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; check the path") from None
    except UnreadableFileError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}; check the path") from None
    except ValueError as error:
        raise DataError(f"{path} cannot be read as a .npy array of numbers: {error}") from None
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


def _read_array(file: BufferedReader) -> NDArray[Any]:
    """Return the array of a .npy file, whose header must fit the rest of the file before anything is made.

    Raises:
        ValueError: The file has another format, is truncated, or holds other values than numbers.
    """
    if file.read(len(MAGIC_PREFIX)) != MAGIC_PREFIX:
        raise InvalidValueError("it is another kind of file; save the array with numpy.save")
    file.seek(0)
    try:
        version = read_magic(file)
        shape, _, dtype = (read_array_header_1_0 if version == (1, 0) else read_array_header_2_0)(file)
    except Exception as error:  # a damaged header is parsed as Python, which raises many types
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InvalidValueError(f"its header is damaged: {reason[:MOST_SHOWN]}") from None
    if dtype.kind not in "fiub":
        raise InvalidValueError(f"it holds {str(dtype)[:MOST_SHOWN]}, not numbers")
    rest = os.fstat(file.fileno()).st_size - file.tell()
    if not all(type(size) is int and 0 <= size <= LARGEST_INT for size in shape):
        raise InvalidValueError(f"its shape must be sizes of a tensor, got {str(shape)[:MOST_SHOWN]}")
    if prod(shape) * dtype.itemsize != rest:
        raise InvalidValueError(
            f"the shape {shape} of {dtype} needs other than the {rest:,} bytes that follow"
        )
    file.seek(0)
    return np.load(file, allow_pickle=False)  # type: ignore[no-any-return]  # a pickle may execute anything


def read_picture_inputs(
    path: Path, normalization: Normalization, shape: Sequence[int], resize: int | None = None
) -> Tensor:
    """Return one picture as inputs [C, H, W], normalized.

    It is cropped to the shape of the data's images, around its middle, and made as large as they are.

    Args:
        path: The file.
        normalization: Normalization of the data that the model was tested on.
        shape: Shape of that data's images, [C, H, W].
        resize: Shorter side of the resized picture, before it is cropped; the images' height if None.

    Raises:
        DataError: The file cannot be read as a picture, or the range of its pixels is not known.
    """
    from PIL import Image, ImageOps

    from pfge.lab.data.pictures import center_crop, open_picture

    if len(shape) != 3:
        raise DataError(f"pictures are inputs [C, H, W], and the ensemble takes {list(shape)}; give arrays")
    channels, height, width = shape
    try:
        picture = open_picture(path)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; check the path") from None
    except DataError:
        raise
    except UnreadableFileError as error:
        raise DataError(str(error)) from None
    except Exception as error:  # decoders raise many types; in each case the file is not usable
        reason = "" if str(path) in str(error) else f": {error}"
        raise DataError(f"{path} cannot be read as a picture{reason}") from None
    if height == width:
        pixels = center_crop(picture, resize=resize or height, size=height)
    else:
        fitted = ImageOps.fit(picture, (width, height), Image.Resampling.BILINEAR)
        pixels = torch.frombuffer(bytearray(fitted.tobytes()), dtype=torch.uint8).view(height, width, 3)
    return normalization(_with_channels(pixels.permute(2, 0, 1), channels))


def resized_side(data: DataPart, height: int) -> int:
    """Return the shorter side of a resized picture, before it is cropped.

    Pictures of streamed data lose their border, as those of its test set do.
    """
    return height if isinstance(data, ImageSet) else round(height * 256 / 224)


def _with_channels(pixels: Tensor, channels: int) -> Tensor:
    if channels == 3:
        return pixels
    if channels != 1:
        raise DataError(f"pictures have 3 channels, or 1 if they are gray, and the data has {channels}")
    # The luma of ITU-R 601, which Pillow also uses to convert color to gray.
    luma = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    return (pixels.float() * luma).sum(dim=0, keepdim=True).round().to(torch.uint8)
