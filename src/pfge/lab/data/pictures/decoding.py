"""One picture file to pixels: decoded, cropped and resized with Pillow."""

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pfge.lab.data.in_memory.image_set import DataError

_AREA = (0.08, 1.0)
_LOG_ASPECT = (math.log(3 / 4), math.log(4 / 3))
_TRIES = 10
LONGEST_SIDE = 50
_16_BITS = ("PNG", "PPM")  # formats whose pixels of mode I go up to 65535: .pgm, and .png before Pillow 11


def open_picture(path: Path) -> Image.Image:
    """Return a picture as RGB, completely decoded, so that a damaged file raises here.

    Of 16 bits the high byte is taken, in every picture alike, so that dark ones stay dark.

    Raises:
        DataError: The range of the pixels is not known, as it is not for floating point.
    """
    with Image.open(path) as picture:
        if max(picture.size) > LONGEST_SIDE * min(picture.size):
            # Its shorter side is made as long as a crop, so a file of a few bytes would take gigabytes.
            raise ValueError(
                f"a picture's longer side must be at most {LONGEST_SIDE} times the shorter one, got "
                f"{picture.width} x {picture.height} in {path}; crop it, or remove it"
            )
        if picture.mode[0] in "IF":
            return _in_8_bits(picture, path).convert("RGB")
        # Through RGBA, because Pillow warns of palettes with transparency.
        return (picture.convert("RGBA") if picture.mode == "P" else picture).convert("RGB")


def center_crop(picture: Image.Image, *, resize: int, size: int) -> Tensor:
    """Return the middle square of a picture whose shorter side was made `resize`, [size, size, 3]."""
    factor = resize / min(picture.size)
    width, height = (max(resize, int(side * factor)) for side in picture.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    resized = picture.resize((width, height), Image.Resampling.BILINEAR)
    return _pixels(resized.crop((left, top, left + size, top + size)))


def random_resized_crop(picture: Image.Image, *, size: int, generator: torch.Generator) -> Tensor:
    """Return a random part of a picture, mirrored half of the time, [size, size, 3].

    The part has 8 % to 100 % of the area and an aspect ratio from 3:4 to 4:3.
    """
    box = random_box(*picture.size, generator)
    part = picture.crop(box).resize((size, size), Image.Resampling.BILINEAR)
    if torch.rand((), generator=generator) < 0.5:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return _pixels(part)


def random_box(width: int, height: int, generator: torch.Generator) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a random part of a picture.

    Where ten draws give no part that fits, as in very long pictures, it is the largest part in the
    middle with an allowed aspect ratio.
    """
    area = width * height * torch.empty(_TRIES, dtype=torch.float64).uniform_(*_AREA, generator=generator)
    aspect = torch.empty(_TRIES, dtype=torch.float64).uniform_(*_LOG_ASPECT, generator=generator).exp()
    corner = torch.rand(2, dtype=torch.float64, generator=generator).tolist()
    for box_width, box_height in zip(
        (area * aspect).sqrt().round().int().tolist(),
        (area / aspect).sqrt().round().int().tolist(),
        strict=True,
    ):
        if 0 < box_width <= width and 0 < box_height <= height:
            left = int(corner[0] * (width - box_width + 1))
            top = int(corner[1] * (height - box_height + 1))
            return left, top, left + box_width, top + box_height
    box_width = min(width, round(height * math.exp(_LOG_ASPECT[1])))
    box_height = min(height, round(width / math.exp(_LOG_ASPECT[0])))
    left, top = (width - box_width) // 2, (height - box_height) // 2
    return left, top, left + box_width, top + box_height


def _in_8_bits(picture: Image.Image, path: Path) -> Image.Image:
    """Return gray pixels of more bits in 8; Pillow would make all above 255 white."""
    values = np.asarray(picture)
    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in _16_BITS):
        return Image.fromarray((values >> 8).astype(np.uint8))
    low, high = values.min(), values.max()
    if picture.mode == "I" and low >= 0 and high <= 255:
        return Image.fromarray(values.astype(np.uint8))
    kind = "floating-point" if picture.mode == "F" else "32-bit"
    raise DataError(
        f"a picture must have 8 or 16 bits for each channel, as what is black and white is not known "
        f"otherwise, got {kind} pixels from {low:g} to {high:g} in {path}; save it with 8 bits, or remove it"
    )


def _pixels(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture))
