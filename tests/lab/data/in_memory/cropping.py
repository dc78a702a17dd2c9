"""Cropping and mirroring with no tensor operation."""

import torch
from torch import Tensor


def cropped_pixel_by_pixel(image: Tensor, padding: int, top: int, left: int, mirrored: bool) -> Tensor:
    """The augmentation of one image written out with no tensor operation."""
    channels, height, width = image.shape
    result = torch.zeros_like(image)
    for channel in range(channels):
        for row in range(height):
            for column in range(width):
                source_row = row + top - padding
                source_column = (width - 1 - column if mirrored else column) + left - padding
                if 0 <= source_row < height and 0 <= source_column < width:
                    result[channel, row, column] = image[channel, source_row, source_column]
    return result
