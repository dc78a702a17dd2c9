"""Data held in memory: images, tables and signals, and their batches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from pfge.lab.data.base import DataError, Fingerprint, Normalization, digest, generator
from pfge.lab.data.batches import (
    MAIN_PROCESS,
    BatchKey,
    EpochOrder,
    EvaluationBatches,
    LoaderOptions,
    TrainingBatches,
    required,
)


def in_memory_order(images: Tensor, channels_last: bool) -> Tensor:
    """Return images [N, C, H, W] as a contiguous tensor, [N, H, W, C] if `channels_last`."""
    return (images.permute(0, 2, 3, 1) if channels_last else images).contiguous()


class ToInputs:
    """Turn uint8 pixels in memory order into normalized float32 inputs, [N, C, H, W].

    Args:
        normalization: The mean and std of each channel.
        images: Images [N, C, H, W] with the shape and device of the pixels to come.
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


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images and their labels as two tensors on one device.

    Attributes:
        images: uint8 pixels, [N, C, H, W].
        labels: int64 class numbers, [N].
        class_names: Name of each class.
        files: A number for each image, int64 [N], that identifies its file; None if the images do not come
            from one file each.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    files: Tensor | None = None

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise DataError(
                f"images must be uint8 [N, C, H, W], got {images.dtype} {list(images.shape)}; "
                "scale the pixels to 0..255 and convert them with .to(torch.uint8)"
            )
        if labels.dtype != torch.int64 or labels.ndim != 1:
            raise DataError(
                f"labels must be int64 [N], got {labels.dtype} {list(labels.shape)}; convert with .long()"
            )
        if len(images) != len(labels):
            raise DataError(
                f"every image needs one label, got {len(images)} images and {len(labels)} labels; "
                "check that both were read from the same files"
            )
        wrong = ((labels < 0) | (labels >= len(self.class_names))).nonzero()
        if len(wrong) > 0:
            first = int(wrong[0])
            raise DataError(
                f"labels must lie in 0..{len(self.class_names) - 1} for {len(self.class_names)} classes, "
                f"got {int(labels[first])} at image {first} ({len(wrong)} such); count classes from 0"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Tensor | Sequence[int]) -> "ImageSet":
        """Return the images at `indices`, in that order."""
        chosen = torch.as_tensor(indices, dtype=torch.int64, device=self.labels.device)
        files = None if self.files is None else self.files[chosen.cpu()]
        return ImageSet(self.images[chosen], self.labels[chosen], self.class_names, files)

    def to(self, device: torch.device | str) -> "ImageSet":
        """Return the set on `device`; nothing is copied if it is there already."""
        return ImageSet(self.images.to(device), self.labels.to(device), self.class_names, self.files)

    def fingerprint(self) -> Fingerprint:
        """Return what tells these images apart from others: their files, or else their pixels."""
        # Pixels of the same file may differ by a bit where another version decodes them.
        content = digest(list(self.images.shape[1:]), self.images if self.files is None else self.files)
        return Fingerprint("images", len(self), digest(self.labels, self.class_names), content)

    def training_batches(
        self, normalization: Normalization | None, order: EpochOrder, options: LoaderOptions
    ) -> TrainingBatches:
        """Return endless shuffled batches, cropped and mirrored as the options ask."""
        data, channels_last = self.to(options.device), options.channels_last
        to_inputs = ToInputs(required(normalization), data.images, channels_last=channels_last)
        all_pixels = in_memory_order(data.images, channels_last)
        augmentation = options.augmentation

        def batch(key: BatchKey) -> tuple[Tensor, Tensor]:
            pixels = key.of(all_pixels)
            if augmentation.crop_padding or augmentation.flip:
                # Drawn for the whole batch before taking this process's share, so that dividing a batch
                # among processes does not change its images.
                random = generator(order.seed, "augmentation", key.number)
                drawn = augmentation.draw(order.batch_size, random)
                top, left, mirrored = (order.share_of(values).to(pixels.device) for values in drawn)
                padding = augmentation.crop_padding
                pixels = crop_and_flip(pixels, padding, top, left, mirrored, channels_last=channels_last)
            return to_inputs(pixels), key.of(data.labels)

        return TrainingBatches(order, partial(map, batch))

    def evaluation_batches(
        self, normalization: Normalization | None, batch_size: int, options: LoaderOptions = MAIN_PROCESS
    ) -> EvaluationBatches:
        """Return all images in order."""
        data, channels_last = self.to(options.device), options.channels_last
        to_inputs = ToInputs(required(normalization), data.images, channels_last=channels_last)

        def batch(key: BatchKey) -> tuple[Tensor, Tensor]:
            return to_inputs(in_memory_order(key.of(data.images), channels_last)), key.of(data.labels)

        return EvaluationBatches(len(data), batch_size, partial(map, batch))


@dataclass(frozen=True, eq=False)
class TensorSet:
    """Inputs of a model, which it gets unchanged, and their targets.

    Attributes:
        inputs: [N, ...]; a table is [N, features], signals are [N, channels, length].
        labels: The targets, [N] or [N, ...]; class numbers become int64.
        class_names: Name of each class; empty if the targets are not classes.
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
        self, _normalization: Normalization | None, order: EpochOrder, options: LoaderOptions
    ) -> TrainingBatches:
        """Return endless shuffled batches."""
        return TrainingBatches(order, partial(map, self.to(options.device)._batch))

    def evaluation_batches(
        self, _normalization: Normalization | None, batch_size: int, options: LoaderOptions = MAIN_PROCESS
    ) -> EvaluationBatches:
        """Return all examples in order."""
        return EvaluationBatches(len(self), batch_size, partial(map, self.to(options.device)._batch))

    def _batch(self, key: BatchKey) -> tuple[Tensor, Tensor]:
        return key.of(self.inputs), key.of(self.labels)


def as_class_numbers(targets: Tensor, classes: int) -> Tensor:
    """Return class numbers as int64, as torch's losses require, and other targets unchanged.

    Targets [N, L] stay, because they may say which of L labels apply.
    """
    # torch takes uint8 for one class each, and the fingerprints of runs have the type.
    is_taken = targets.ndim == 1 and targets.dtype == torch.uint8
    if not classes or targets.is_floating_point() or targets.ndim == 2 or is_taken:
        return targets
    return targets.to(torch.int64)


def require_known_classes(targets: Tensor, classes: int) -> None:
    """Raise a DataError if targets, one class number for each example, are outside of the classes.

    The task checks targets of other kinds.
    """
    if not classes or targets.ndim != 1 or targets.is_floating_point():
        return
    wrong = ((targets < 0) | (targets >= classes)).nonzero()
    if len(wrong):
        raise DataError(
            f"targets must lie in 0..{classes - 1} for {classes} classes, got {int(targets[wrong[0]])} "
            f"({len(wrong)} such); count classes from 0, or give the right number of classes"
        )
