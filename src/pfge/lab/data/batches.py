"""Batches of any data: their order, their options, and how they are read, in this process or by workers."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol, Self, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pfge.lab.data.base import DataError, Fingerprint, Normalization, generator

Batch: TypeAlias = tuple[Any, Tensor]
"""Inputs and targets; inputs are a tensor, or a tuple or a dict of what the model is called with."""


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images.

    Attributes:
        crop_padding: Black pixels added on every side before a crop of the original size is cut out;
            0 does not shift images.
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


CPU = torch.device("cpu")
NO_AUGMENTATION = Augmentation(crop_padding=0, flip=False)


@dataclass(frozen=True)
class LoaderOptions:
    """How batches are loaded.

    Attributes:
        workers: Processes that read data which is not in memory; 0 reads in the main process.
        device: Device of the batches.
        channels_last: Whether the batches have the channels-last memory format.
        augmentation: Random crop and flip of training images in memory; streamed ones always have a random
            resized crop and a flip.
    """

    workers: int = 0
    device: torch.device = CPU
    channels_last: bool = False
    augmentation: Augmentation = NO_AUGMENTATION


MAIN_PROCESS = LoaderOptions()


def count_batches(images: int, batch_size: int) -> int:
    """Return the iterations of an epoch: whole batches only, as a smaller last one is left out."""
    if images < batch_size:
        raise DataError(
            f"an epoch must have at least one batch, got {images} images for batch_size {batch_size}; "
            "make the batch smaller"
        )
    return images // batch_size


class EpochOrder:
    """Cut a fresh permutation of all images into batches, epoch after epoch.

    Args:
        images: Number of images.
        batch_size: Images in a batch, over all processes.
        seed: Decides the permutations, together with the epoch.
        share: Index of this process, and the number of processes that share every batch.
    """

    def __init__(
        self,
        images: int,
        *,
        batch_size: int,
        seed: int,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        rank, processes = share
        if batch_size < 1 or batch_size % processes:
            raise DataError(
                f"batch_size must be a positive multiple of {processes} processes, got {batch_size}"
            )
        if not 0 <= rank < processes:
            raise DataError(f"share must be (rank, processes) with 0 <= rank < processes, got {share}")
        self.per_epoch = count_batches(images, batch_size)
        self._images = images
        self.batch_size = batch_size
        self.seed = seed
        self._share = share
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    def at(self, iteration: int) -> Tensor:
        """Return the indices of this process's images at an iteration, counted from 1."""
        epoch, start = self._locate(iteration)
        return self.share_of(self.permutation(epoch)[start : start + self.batch_size])

    def share_of(self, values: Tensor) -> Tensor:
        """Return the entries of this process; `values` has one for each image of a batch."""
        rank, processes = self._share
        return values[rank::processes]

    def permutation(self, epoch: int) -> Tensor:
        """Return the order of all images in an epoch, counted from 0."""
        if epoch != self._epoch:
            self._permutation = torch.randperm(self._images, generator=generator(self.seed, "order", epoch))
            self._epoch = epoch
        return self._permutation

    def _locate(self, iteration: int) -> tuple[int, int]:
        if iteration < 1:
            raise DataError(f"iterations count from 1, got {iteration}")
        epoch, batch = divmod(iteration - 1, self.per_epoch)
        return epoch, batch * self.batch_size


@dataclass(frozen=True, eq=False)
class BatchKey:
    """Which items are in a batch.

    Attributes:
        number: Iteration of a training batch, or position of an evaluation batch. The random crops of a
            batch and its collate function depend on it.
        epoch: Epoch, counted from 0. What an item draws depends on it, and on the item's index.
        indices: Positions of the items in their data; a range if they are consecutive.
    """

    number: int
    epoch: int
    indices: Tensor | Sequence[int]

    def as_plain(self) -> "BatchKey":
        """Return the same key without tensors, to be sent to other processes."""
        indices = self.indices.tolist() if isinstance(self.indices, Tensor) else self.indices
        return replace(self, indices=indices)

    def of(self, values: Tensor) -> Tensor:
        """Return the entries of a tensor at these positions; consecutive ones are a view."""
        if isinstance(self.indices, range):
            return values[self.indices.start : self.indices.stop]
        return values.index_select(0, torch.as_tensor(self.indices, device=values.device))


class BatchReader(Protocol):
    """Makes batches of the items that keys name."""

    def __call__(self, keys: Iterable[BatchKey], /) -> Iterator[Batch]:
        """Yield the batch of each key; the keys may have no end."""


class TrainingBatches:
    """Endless shuffled batches, any of which can be computed from its iteration.

    An epoch visits every item once, in an order that depends on the seed and the epoch. What is drawn at
    random for a batch depends on the seed and the iteration. Nothing is remembered between batches, so a run
    resumes from an iteration number alone.

    Args:
        order: Order of the items.
        reader: Reads the items of a batch.
    """

    def __init__(self, order: EpochOrder, reader: BatchReader) -> None:
        self.reader = reader
        self._order = order

    @property
    def per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return self._order.per_epoch

    def at(self, iteration: int) -> Batch:
        """Return the batch of an iteration, counted from 1."""
        return next(self.reader([self._key(iteration)]))

    def starting_after(self, iteration: int, *, every: int = 1) -> Iterator[Batch]:
        """Yield the batches of the iterations after `iteration`, or every n-th of them, without end."""
        return self.reader(map(self._key, count(iteration + 1, every)))

    def _key(self, iteration: int) -> BatchKey:
        epoch = (iteration - 1) // self.per_epoch
        return BatchKey(iteration, epoch, self._order.at(iteration))


class EvaluationBatches:
    """All items in their own order; can be iterated repeatedly.

    Args:
        items: Number of items.
        batch_size: Items in a batch; the last may have fewer.
        reader: Reads the items of a batch.
    """

    def __init__(self, items: int, batch_size: int, reader: BatchReader) -> None:
        if batch_size < 1:
            raise DataError(f"batch_size must be at least 1, got {batch_size}")
        self.reader = reader
        self._items = items
        self._starts = range(0, items, batch_size)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Batch]:
        return self.reader(
            BatchKey(number, 0, range(start, min(start + self._starts.step, self._items)))
            for number, start in enumerate(self._starts)
        )


@dataclass(frozen=True)
class _Failure:
    """The message of a DataError; the main process raises it, as an error from a worker is a traceback."""

    message: str


class LoadedBatches(Dataset[Any], ABC):
    """Batches by key that workers can read."""

    @abstractmethod
    def read(self, key: BatchKey) -> Any:
        """Return a batch; raise a DataError if it cannot be read."""

    def __getitem__(self, key: BatchKey) -> Any:
        """Return a batch, or a failure."""
        try:
            return self.read(key)
        except DataError as error:
            return _Failure(str(error))


def load(batches: LoadedBatches, keys: Iterable[BatchKey], options: LoaderOptions) -> Iterator[Any]:
    """Yield batches, which the workers read ahead; without workers this process reads.

    Raises:
        DataError: A batch cannot be read.
    """
    keys = (key.as_plain() for key in keys)
    if options.workers == 0:
        loaded: Iterable[Any] = map(batches.__getitem__, keys)
    else:
        loaded = DataLoader(
            batches,
            sampler=keys,
            batch_size=None,
            num_workers=options.workers,
            collate_fn=_unchanged,
            pin_memory=options.device.type == "cuda",
            # A loader draws a number for its workers; without this it would take it from the global stream.
            generator=torch.Generator(),
        )
    for batch in loaded:
        if isinstance(batch, _Failure):
            raise DataError(batch.message)
        yield batch


def _unchanged(batch: Any) -> Any:
    return batch


class Labeled(Protocol):
    """Items with targets; a selection of them has the same kind."""

    @property
    def labels(self) -> Tensor:
        """The target of each item; class numbers are int64 [N]."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class; empty if the targets are not classes."""

    def __len__(self) -> int: ...

    def select(self, indices: Tensor | Sequence[int]) -> Self:
        """Return the items at `indices`, in that order."""

    def fingerprint(self) -> Fingerprint:
        """Return what tells these items apart from others."""


class DataPart(Labeled, Protocol):
    """Training, validation or test data of any kind: images, tensors, and the items of a Dataset."""

    def training_batches(
        self, normalization: Normalization | None, order: EpochOrder, options: LoaderOptions
    ) -> TrainingBatches:
        """Return endless batches in that order."""

    def evaluation_batches(
        self, normalization: Normalization | None, batch_size: int, options: LoaderOptions = MAIN_PROCESS
    ) -> EvaluationBatches:
        """Return all items in order."""


DEFAULT_AUGMENTATION = Augmentation()


def training_batches(
    data: DataPart,
    normalization: Normalization | None,
    *,
    batch_size: int,
    seed: int,
    augmentation: Augmentation = DEFAULT_AUGMENTATION,
    share: tuple[int, int] = (0, 1),
    workers: int = 0,
    device: torch.device | str = "cpu",
    channels_last: bool = False,
) -> TrainingBatches:
    """Return training batches of any data.

    Args:
        data: Images in memory or streamed, or data of any other kind.
        normalization: Turns pixels into inputs; None for data of other kinds.
        batch_size: Images in a batch, over all processes.
        seed: Decides order and augmentation.
        augmentation: Random crop and flip of images in memory; streamed ones always have a random resized
            crop and a flip.
        share: Index of this process, and the number of processes that share every batch.
        workers: Processes that read data which is not in memory.
        device: Device of the batches.
        channels_last: Whether the batches have the channels-last memory format.
    """
    order = EpochOrder(len(data), batch_size=batch_size, seed=seed, share=share)
    options = LoaderOptions(workers, torch.device(device), channels_last, augmentation)
    return data.training_batches(normalization, order, options)


def evaluation_batches(
    data: DataPart,
    normalization: Normalization | None,
    *,
    batch_size: int,
    workers: int = 0,
    device: torch.device | str = "cpu",
    channels_last: bool = False,
) -> EvaluationBatches:
    """Return evaluation batches of any data; the arguments are those of `training_batches`."""
    options = LoaderOptions(workers, torch.device(device), channels_last)
    return data.evaluation_batches(normalization, batch_size, options)


def required(normalization: Normalization | None) -> Normalization:
    """Return the normalization of images.

    Raises:
        DataError: It is None.
    """
    if normalization is None:
        raise DataError("images need a normalization; give the mean and the std of each channel")
    return normalization
