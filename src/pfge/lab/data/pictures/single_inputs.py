"""Read single picture files as inputs of a model, processed like test images."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from pfge.lab.data import DataError, DataPart, ImageSet, Normalization


def read_picture_inputs(
    path: Path, normalization: Normalization, shape: Sequence[int], resize: int | None = None
) -> Tensor:
    """Return one picture as inputs [C, H, W], normalized.

    It is cropped to the shape of the data's images, around its middle, and made as large as they are.

    Args:
        path: The file.
        normalization: Of the data that the model was tested on.
        shape: [C, H, W] of its images.
        resize: The picture's shorter side before its middle is taken; that of the images if None.

    Raises:
        DataError: The file cannot be read as a picture, or the range of its pixels is not known.
    """
    from PIL import Image, ImageOps

    from pfge.lab.data.pictures.decoding import center_crop, open_picture

    channels, height, width = shape
    try:
        picture = open_picture(path)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; check the path") from None
    except DataError:
        raise
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
    """Return the shorter side of a picture before its middle is taken.

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
