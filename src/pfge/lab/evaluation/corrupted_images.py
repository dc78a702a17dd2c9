"""Data sets with corrupted images: corrupted once if they are in memory, else batch by batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Never, Self, overload

import torch
from torch import Tensor

from pfge.lab.data.delivery import READ_HERE, Delivery
from pfge.lab.data.derived import Derived
from pfge.lab.data.in_memory.image_set import DataError, ImageSet, Normalization
from pfge.lab.data.in_memory.inputs import ToInputs, in_memory_order
from pfge.lab.data.sources import Batch, BatchedPart, DataPart, EvaluationSource
from pfge.lab.evaluation.corruptions import corrupt, require_corruption


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
class CorruptedStream(Derived):
    """Streamed images that are corrupted when a batch needs them.

    Attributes:
        images: The images as they are.
        name: How they are corrupted.
        strength: How much.
        seed: Decides random corruptions.
        positions: Where each image stood in the data that was corrupted, so that a selection of
            corrupted images has the same pixels.
    """

    images: BatchedPart
    name: str
    strength: int
    seed: int
    positions: Sequence[int]

    @property
    def origin(self) -> BatchedPart:
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
        self, normalization: Normalization, batch_size: int, delivery: Delivery = READ_HERE
    ) -> "CorruptedBatches":
        """Return all images in order, corrupted by this process."""
        channels = len(normalization.mean)
        # A stream returns only normalized inputs; with mean 0 and this std they equal the pixels.
        as_pixels = Normalization((0.0,) * channels, (1 / 255,) * channels)
        pixels = self.images.evaluation_batches(as_pixels, batch_size, Delivery(delivery.workers))
        return CorruptedBatches(self, pixels, normalization, delivery)


class CorruptedBatches:
    """All images of a corrupted stream, in order; can be iterated repeatedly."""

    def __init__(
        self,
        stream: CorruptedStream,
        pixels: EvaluationSource,
        normalization: Normalization,
        delivery: Delivery,
    ) -> None:
        self._stream = stream
        self._pixels = pixels
        self._normalization = normalization
        self._delivery = delivery

    def __len__(self) -> int:
        return len(self._pixels)

    def __iter__(self) -> Iterator[Batch]:
        stream, done = self._stream, 0
        for pixels, labels in self._pixels:
            positions = stream.positions[done : done + len(labels)]
            done += len(labels)
            whole = pixels.round().to(torch.uint8)
            images = corrupt(whole, stream.name, stream.strength, stream.seed, positions=positions)
            yield self._to_inputs(images.to(self._delivery.device)), labels.to(self._delivery.device)

    def _to_inputs(self, images: Tensor) -> Tensor:
        to_inputs = ToInputs(self._normalization, images, channels_last=self._delivery.channels_last)
        return to_inputs(in_memory_order(images, self._delivery.channels_last))
