"""Batches of an image set in memory: each a pure function of a seed and an iteration."""

from collections.abc import Iterator
from itertools import count

from torch import Tensor

from pfge.lab.data.in_memory.augmentation import Augmentation, crop_and_flip
from pfge.lab.data.in_memory.image_set import DataError, ImageSet, Normalization
from pfge.lab.data.in_memory.inputs import ToInputs, in_memory_order
from pfge.lab.data.ordering import EpochOrder
from pfge.lab.data.seeding import generator


class TrainingBatches:
    """Endless shuffled, augmented batches, any of which can be computed from its iteration.

    An epoch visits every image once, in an order that depends on the seed and the epoch; what is
    done to the images of a batch depends on the seed and the iteration. Nothing is remembered
    between batches, so a run resumes from an iteration number alone.

    Args:
        data: The images, on the device the batches are to be on.
        normalization: Applied after augmentation, so the border of a crop is black.
        batch_size: Images in a batch, over all processes.
        seed: Decides order and augmentation.
        augmentation: Random crop and flip.
        channels_last: Whether the batches have the channels-last memory format.
        share: Which part of every batch is for this process, and the number of parts.
    """

    def __init__(
        self,
        data: ImageSet,
        normalization: Normalization,
        *,
        batch_size: int,
        seed: int,
        augmentation: Augmentation,
        channels_last: bool = False,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self._order = EpochOrder(len(data), batch_size=batch_size, seed=seed, share=share)
        self._pixels = in_memory_order(data.images, channels_last)
        self._labels = data.labels
        self._to_inputs = ToInputs(normalization, data.images, channels_last=channels_last)
        self._seed = seed
        self._augmentation = augmentation
        self._channels_last = channels_last

    @property
    def per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return self._order.per_epoch

    def at(self, iteration: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of an iteration, counted from 1."""
        chosen = self._order.at(iteration).to(self._labels.device)
        pixels = self._pixels.index_select(0, chosen)
        if self._augmentation.crop_padding or self._augmentation.flip:
            pixels = self._augment(pixels, iteration)
        return self._to_inputs(pixels), self._labels.index_select(0, chosen)

    def starting_after(self, iteration: int, *, every: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of the iterations after `iteration`, or every n-th of them, without end."""
        return map(self.at, count(iteration + 1, every))

    def _augment(self, pixels: Tensor, iteration: int) -> Tensor:
        # Drawn for the whole batch before taking this process's share, so that dividing a batch
        # among processes does not change its images.
        drawn = self._augmentation.draw(
            self._order.batch_size, generator(self._seed, "augmentation", iteration)
        )
        top, left, mirrored = (self._order.share_of(values).to(pixels.device) for values in drawn)
        padding = self._augmentation.crop_padding
        return crop_and_flip(pixels, padding, top, left, mirrored, channels_last=self._channels_last)


class EvaluationBatches:
    """All images in their own order; can be iterated repeatedly.

    Args:
        data: The images, on the device the batches are to be on.
        normalization: Turns pixels into inputs.
        batch_size: Images in a batch; the last may have fewer.
        channels_last: Whether the batches have the channels-last memory format.
    """

    def __init__(
        self, data: ImageSet, normalization: Normalization, *, batch_size: int, channels_last: bool = False
    ) -> None:
        if batch_size < 1:
            raise DataError(f"batch_size must be at least 1, got {batch_size}")
        self._data = data
        self._to_inputs = ToInputs(normalization, data.images, channels_last=channels_last)
        self._batch_size = batch_size
        self._channels_last = channels_last

    def __len__(self) -> int:
        return -(-len(self._data) // self._batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self._data), self._batch_size):
            batch = slice(start, start + self._batch_size)
            pixels = in_memory_order(self._data.images[batch], self._channels_last)
            yield self._to_inputs(pixels), self._data.labels[batch]
