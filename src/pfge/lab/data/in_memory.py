"""Data held in memory: images, tables and signals, and their batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import torch
from torch import Tensor
from torch.nn.functional import pad

from pfge.lab.data.base import (
    MAIN_PROCESS,
    DataError,
    EpochOrder,
    Fingerprint,
    ImageSet,
    LoaderOptions,
    Normalization,
    digest,
    generator,
)


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


@dataclass(frozen=True, eq=False)
class TensorSet:
    """Inputs of a model and their targets, which are given to it as they are.

    Attributes:
        inputs: [N, ...]; a table is [N, features], signals are [N, channels, length].
        labels: The targets, [N] or [N, ...]; class numbers become int64.
        class_names: What each class number stands for; empty if the targets are not classes.
    """

    inputs: Tensor
    labels: Tensor
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.inputs.ndim < 2 or self.labels.ndim < 1 or len(self.inputs) != len(self.labels):
            raise DataError(
                "inputs [N, ...] and targets [N] or [N, ...] must be as many, got "
                f"{list(self.inputs.shape)} and {list(self.labels.shape)}"
            )
        object.__setattr__(self, "labels", as_class_numbers(self.labels, len(self.class_names)))
        require_known_classes(self.labels, len(self.class_names))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def channels(self) -> int:
        """The size of the second dimension of the inputs: channels of signals, features of a table."""
        return self.inputs.shape[1]

    def select(self, indices: Tensor | Sequence[int]) -> "TensorSet":
        """Return the examples at `indices`, in that order."""
        chosen = torch.as_tensor(indices, dtype=torch.int64, device=self.labels.device)
        return replace(self, inputs=self.inputs[chosen], labels=self.labels[chosen])

    def to(self, device: torch.device | str) -> "TensorSet":
        """Return the set on `device`; nothing is copied if it is there already."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def first_non_finite(self) -> int | None:
        """Return the first example whose inputs have NaN or infinity, if there is one."""
        if not self.inputs.is_floating_point() or not self.inputs.numel():
            return None
        low, high = self.inputs.aminmax()  # no copy of the inputs, and NaN if there is one
        if low.isfinite() and high.isfinite():
            return None
        return int((~self.inputs.isfinite()).flatten(1).any(1).nonzero()[0])

    def fingerprint(self) -> Fingerprint:
        """Return what tells these examples apart from others."""
        targets = digest(self.labels, self.class_names)
        return Fingerprint("examples", len(self), targets, digest(self.inputs))

    def training_batches(
        self, _normalization: None, order: EpochOrder, options: LoaderOptions
    ) -> "TensorTraining":
        """Return endless shuffled batches."""
        return TensorTraining(self.to(options.device), order)

    def evaluation_batches(
        self, _normalization: None, batch_size: int, options: LoaderOptions = MAIN_PROCESS
    ) -> "TensorEvaluation":
        """Return all examples in order."""
        return TensorEvaluation(self.to(options.device), batch_size)


class TensorTraining:
    """Endless training batches; each is a pure function of the seed and the iteration."""

    def __init__(self, data: TensorSet, order: EpochOrder) -> None:
        self._data = data
        self._order = order

    @property
    def per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return self._order.per_epoch

    def at(self, iteration: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of an iteration, counted from 1."""
        chosen = self._order.at(iteration).to(self._data.labels.device)
        return self._data.inputs.index_select(0, chosen), self._data.labels.index_select(0, chosen)

    def starting_after(self, iteration: int, *, every: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of the iterations after `iteration`, or every n-th of them, without end."""
        return map(self.at, count(iteration + 1, every))


class TensorEvaluation:
    """All examples in their own order; can be iterated repeatedly."""

    def __init__(self, data: TensorSet, batch_size: int) -> None:
        if batch_size < 1:
            raise DataError(f"batch_size must be at least 1, got {batch_size}")
        self._data = data
        self._batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self._data) // self._batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self._data), self._batch_size):
            batch = slice(start, start + self._batch_size)
            yield self._data.inputs[batch], self._data.labels[batch]


def as_class_numbers(targets: Tensor, classes: int) -> Tensor:
    """Return whole numbers that stand for classes as int64, which torch's losses take; others as they are.

    Targets [N, L] stay, because they may say which of L labels apply.
    """
    # torch takes uint8 for one class each, and the fingerprints of runs have the type.
    is_taken = targets.ndim == 1 and targets.dtype == torch.uint8
    if not classes or targets.is_floating_point() or targets.ndim == 2 or is_taken:
        return targets
    return targets.to(torch.int64)


def require_known_classes(targets: Tensor, classes: int) -> None:
    """Raise a DataError if targets, one class number for each example, are outside of the classes.

    Targets of other kinds are left to the task, which knows what else may stand in them.
    """
    if not classes or targets.ndim != 1 or targets.is_floating_point():
        return
    wrong = ((targets < 0) | (targets >= classes)).nonzero()
    if len(wrong):
        raise DataError(
            f"targets must lie in 0..{classes - 1} for {classes} classes, got {int(targets[wrong[0]])} "
            f"({len(wrong)} such); count classes from 0, or give the number that there are"
        )
