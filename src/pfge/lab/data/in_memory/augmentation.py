"""Random crops and flips of a whole batch at once."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from pfge.lab.data.in_memory.image_set import DataError


@dataclass(frozen=True)
class Augmentation:
    """What a training image may look like.

    Attributes:
        crop_padding: Black pixels added on every side before a crop of the original size is cut out;
            0 leaves the position alone.
        flip: Whether an image is mirrored left to right with probability one half.
    """

    crop_padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.crop_padding < 0:
            raise DataError(f"crop_padding must be 0 or more pixels, got {self.crop_padding}")

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return the top and left edge of each of `count` crops, and which crops are mirrored."""
        top, left = torch.randint(2 * self.crop_padding + 1, (2, count), generator=generator)
        mirrored = torch.randint(2, (count,), generator=generator).bool() & self.flip
        return top, left, mirrored


def crop_and_flip(
    pixels: Tensor, padding: int, top: Tensor, left: Tensor, mirrored: Tensor, *, channels_last: bool
) -> Tensor:
    """Return the images padded with black, cropped to their size, then mirrored where `mirrored` is true.

    Args:
        pixels: Contiguous images, [N, H, W, C] if `channels_last`, else [N, C, H, W].
        padding: Black pixels on every side.
        top: First row of each crop in the padded image, [N].
        left: First column of each crop, [N].
        mirrored: Which crops are flipped left to right, [N].
        channels_last: The order of the dimensions of `pixels`.
    """
    count, height, width = len(pixels), *((1, 2) if channels_last else (2, 3))
    border = (padding,) * 4
    padded = pad(torch.cat((pixels, pixels.flip(width))), (0, 0, *border) if channels_last else border)
    # A crop of one padded image is a run of memory with gaps between its rows. Fetching that run and
    # skipping the gaps in a view is one copy an image, far faster than indexing pixel by pixel.
    size, row, column = padded.stride(0), padded.stride(height), padded.stride(width)
    run = size - 2 * padding * (row + column)
    image = torch.arange(count, device=pixels.device) + count * mirrored
    # Cropping the mirror image from the right is mirroring the crop.
    left = torch.where(mirrored, 2 * padding - left, left)
    every_run = padded.flatten().as_strided((padded.numel() - run + 1, run), (1, 1))
    runs = every_run.index_select(0, image * size + top * row + left * column)
    return runs.as_strided(pixels.shape, (run, *padded.stride()[1:]))
