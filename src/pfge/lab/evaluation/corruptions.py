"""Corrupted inputs: the corruptions, and data sets that apply them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from io import BytesIO
from typing import Never, Self, TypeAlias, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pfge.lab.data.base import DataError, Normalization, derive_seed
from pfge.lab.data.batches import (
    MAIN_PROCESS,
    Batch,
    BatchKey,
    DataPart,
    EvaluationBatches,
    LoaderOptions,
    required,
)
from pfge.lab.data.in_memory import ImageSet, ToInputs, in_memory_order
from pfge.lab.data.splits import LabelProxy

STRENGTHS = range(1, 6)

Corruption: TypeAlias = Callable[[Tensor, int, Sequence[int]], Tensor]
"""Maps float64 pixels in 0..1 [N, C, H, W], a strength and a seed for each image to pixels."""

_AT_ONCE = 64  # bounds the memory of float64 copies


def corrupt(
    images: Tensor, name: str, strength: int, seed: int, *, positions: Sequence[int] | None = None
) -> Tensor:
    """Return corrupted images; the originals stay.

    Args:
        images: uint8 pixels, [N, C, H, W].
        name: One of `CORRUPTIONS`.
        strength: From 1, mild, to 5.
        seed: Decides random corruptions, together with an image's position.
        positions: Where each image stands in its set, [N]; 0, 1, ... if None. A set that is corrupted
            part by part is the same as one that is corrupted whole.
    """
    require_corruption(name, strength)
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise DataError(
            f"images must be uint8 [N, C, H, W], got {images.dtype} {list(images.shape)}; "
            "corrupt pixels before they are normalized"
        )
    positions = range(len(images)) if positions is None else positions
    if len(positions) != len(images):
        raise DataError(f"every image needs a position, got {len(positions)} for {len(images)} images")
    result = torch.empty_like(images)
    for start in range(0, len(images), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        seeds = [derive_seed(seed, f"corruption {name}", position) for position in positions[part]]
        # On the CPU, so that the pixels are the same on every device.
        pixels = CORRUPTIONS[name](images[part].cpu().double() / 255, strength, seeds)
        result[part] = (pixels.clamp(0, 1) * 255).round().to(torch.uint8)
    return result


def require_corruption(name: str, strength: int) -> None:
    """Raise DataError unless the corruption and the strength exist."""
    if name not in CORRUPTIONS:
        close = get_close_matches(name.lower(), CORRUPTIONS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise DataError(f"unknown corruption {name!r}; {hint}Allowed: {', '.join(CORRUPTIONS)}")
    if strength not in STRENGTHS:
        raise DataError(f"strength must be from 1 to {STRENGTHS[-1]}, got {strength}")


def noise(pixels: Tensor, strength: int, seeds: Sequence[int]) -> Tensor:
    """Add normal noise to every value."""
    sigma = (0.04, 0.06, 0.08, 0.09, 0.10)[strength - 1]
    # One image at a time, so that its noise does not depend on the other images of the batch.
    generators = (torch.Generator().manual_seed(seed) for seed in seeds)
    drawn = [torch.randn(pixels.shape[1:], dtype=pixels.dtype, generator=each) for each in generators]
    return pixels + sigma * torch.stack(drawn)


def blur(pixels: Tensor, strength: int, _seeds: Sequence[int]) -> Tensor:
    """Replace every pixel by a Gaussian mean around it; the edge is repeated beyond the border."""
    shorter = min(pixels.shape[2:])
    sigma = (0.4, 0.6, 0.7, 0.8, 1.0)[strength - 1] * max(1.0, shorter / 32)
    return _mix_rows_and_columns(pixels, lambda size: _gaussian_means(size, sigma))


def brightness(pixels: Tensor, strength: int, _seeds: Sequence[int]) -> Tensor:
    """Add to the value of HSV, the largest channel, and keep hue and saturation; black becomes gray."""
    added = (0.05, 0.1, 0.15, 0.2, 0.3)[strength - 1]
    value = pixels.amax(dim=1, keepdim=True)
    brighter = (value + added).clamp(max=1)
    return torch.where(value > 0, pixels * (brighter / value), brighter)


def contrast(pixels: Tensor, strength: int, _seeds: Sequence[int]) -> Tensor:
    """Move each channel toward its mean over the image."""
    kept = (0.75, 0.5, 0.4, 0.3, 0.15)[strength - 1]
    mean = pixels.mean(dim=(2, 3), keepdim=True)
    return mean + kept * (pixels - mean)


def pixelation(pixels: Tensor, strength: int, _seeds: Sequence[int]) -> Tensor:
    """Divide the image into fewer, larger pixels, each the mean of those whose center it covers."""
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[strength - 1]
    return _mix_rows_and_columns(pixels, lambda size: _cell_means(size, max(1, int(size * share))))


def jpeg(pixels: Tensor, strength: int, _seeds: Sequence[int]) -> Tensor:
    """Write each image as JPEG and read it again."""
    quality = (80, 65, 58, 50, 40)[strength - 1]
    channels = pixels.shape[1]
    if channels not in (1, 3):
        raise DataError(f"JPEG images must have 1 or 3 channels, got {channels}; use another corruption")
    decoded = []
    for values in (pixels * 255).round().to(torch.uint8).permute(0, 2, 3, 1):
        file = BytesIO()
        Image.fromarray((values[:, :, 0] if channels == 1 else values).numpy()).save(
            file, "JPEG", quality=quality
        )
        with Image.open(file) as picture:
            decoded.append(torch.from_numpy(np.array(picture)).view(values.shape))
    return torch.stack(decoded).permute(0, 3, 1, 2).double() / 255


CORRUPTIONS: dict[str, Corruption] = {
    "noise": noise,
    "blur": blur,
    "brightness": brightness,
    "contrast": contrast,
    "pixelation": pixelation,
    "jpeg": jpeg,
}


def _mix_rows_and_columns(pixels: Tensor, weights: Callable[[int], Tensor]) -> Tensor:
    height, width = pixels.shape[2:]
    return weights(height) @ (pixels @ weights(width).T)


def _gaussian_means(size: int, sigma: float) -> Tensor:
    """Return how much of each of `size` pixels is in the blurred ones, [to, from]."""
    radius = int(4 * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    bell = (-0.5 * (offsets.double() / sigma).square()).exp()
    sources = (torch.arange(size)[:, None] + offsets).clamp(0, size - 1)
    means = torch.zeros(size, size, dtype=torch.float64)
    return means.scatter_add_(1, sources, (bell / bell.sum()).expand(size, -1))


def _cell_means(size: int, cells: int) -> Tensor:
    """Return how much of each of `size` pixels is in its cell's mean, [to, from]."""
    # The cell of a pixel's center, (index + 1/2) * cells / size, in whole numbers so that borders are exact.
    cell = (2 * torch.arange(size) + 1) * cells // (2 * size)
    together = (cell[:, None] == cell).double()
    return together / together.sum(dim=1, keepdim=True)


@overload
def corrupted(data: ImageSet, name: str, strength: int, seed: int) -> ImageSet: ...


@overload
def corrupted(data: DataPart, name: str, strength: int, seed: int) -> DataPart: ...


def corrupted(data: DataPart, name: str, strength: int, seed: int) -> DataPart:
    """Return the data with corrupted images and the same labels.

    Args:
        data: Images in memory or streamed; streamed ones are for evaluation only.
        name: One of `pfge.lab.evaluation.corruptions.CORRUPTIONS`.
        strength: From 1, mild, to 5.
        seed: Decides random corruptions, together with an image's position in `data`.
    """
    require_corruption(name, strength)
    if isinstance(data, ImageSet):
        return replace(data, images=corrupt(data.images, name, strength, seed))
    return CorruptedStream(data, name, strength, seed, range(len(data)))


@dataclass(frozen=True, eq=False)
class CorruptedStream(LabelProxy):
    """Streamed images that are corrupted when a batch needs them.

    Attributes:
        images: The images as they are.
        name: How they are corrupted.
        strength: How much.
        seed: Decides random corruptions.
        positions: Where each image stood in the data that was corrupted, so that a selection of
            corrupted images has the same pixels.
    """

    images: DataPart
    name: str
    strength: int
    seed: int
    positions: Sequence[int]

    @property
    def origin(self) -> DataPart:
        """The images as they are."""
        return self.images

    def select(self, indices: Tensor | Sequence[int]) -> Self:
        """Return the images at `indices`, in that order."""
        positions = [self.positions[int(index)] for index in indices]
        return replace(self, images=self.images.select(indices), positions=positions)

    def training_batches(self, *_arguments: object) -> Never:
        """Raise an error: corrupted images are for evaluation only."""
        raise DataError("corrupted images are for evaluation only; train on the data as it is")

    def evaluation_batches(
        self, normalization: Normalization | None, batch_size: int, options: LoaderOptions = MAIN_PROCESS
    ) -> EvaluationBatches:
        """Return all images in order, corrupted by this process."""
        known = required(normalization)
        channels = len(known.mean)
        # A stream returns only normalized inputs; with mean 0 and this std they equal the pixels.
        as_pixels = Normalization((0.0,) * channels, (1 / 255,) * channels)
        source = self.images.evaluation_batches(as_pixels, batch_size, LoaderOptions(options.workers))

        def read(keys: Iterable[BatchKey]) -> Iterator[Batch]:
            listed = list(keys)
            for key, (pixels, labels) in zip(listed, source.reader(listed), strict=True):
                positions = [self.positions[int(index)] for index in key.indices]
                whole = pixels.round().to(torch.uint8)
                images = corrupt(whole, self.name, self.strength, self.seed, positions=positions)
                moved = images.to(options.device)
                to_inputs = ToInputs(known, moved, channels_last=options.channels_last)
                yield (
                    to_inputs(in_memory_order(moved, options.channels_last)),
                    labels.to(options.device),
                )

        return EvaluationBatches(len(self), batch_size, read)
