"""Raw pixels to normalized network inputs, in either memory order, as fast as memory allows."""

import torch
from torch import Tensor

from pfge.lab.data.in_memory.image_set import DataError, Normalization


def in_memory_order(images: Tensor, channels_last: bool) -> Tensor:
    """Return images [N, C, H, W] as a contiguous tensor, [N, H, W, C] if `channels_last`."""
    return (images.permute(0, 2, 3, 1) if channels_last else images).contiguous()


class ToInputs:
    """Turn uint8 pixels in memory order into normalized float32 inputs, [N, C, H, W].

    Args:
        normalization: The mean and std of each channel.
        images: Any images [N, C, H, W] of the shape and on the device of those to come.
        channels_last: The order of the dimensions of the pixels, and the inputs' memory format.
    """

    def __init__(self, normalization: Normalization, images: Tensor, *, channels_last: bool) -> None:
        _, channels, _, width = images.shape
        if channels != len(normalization.mean):
            raise DataError(
                f"normalization must have a mean and std for each of {channels} channels, "
                f"got {len(normalization.mean)}"
            )
        scale, shift = (
            torch.tensor(values, device=images.device) for values in normalization.scale_and_shift()
        )
        # Spelled out along a row, the innermost dimension is long and the multiplication vectorizes.
        self._scale, self._shift = (
            values.repeat(width) if channels_last else values[:, None] for values in (scale, shift)
        )
        self._channels_last = channels_last

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return the inputs; they share no memory with `pixels`."""
        inputs = pixels.to(torch.float32, memory_format=torch.contiguous_format)
        inputs.flatten(2).mul_(self._scale).add_(self._shift)
        return inputs.permute(0, 3, 1, 2) if self._channels_last else inputs
