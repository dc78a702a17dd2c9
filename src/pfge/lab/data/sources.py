"""Batches for training and evaluation, of data in memory or streamed from disk."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self, TypeAlias

import torch
from torch import Tensor

from pfge.lab.data.delivery import READ_HERE, Delivery
from pfge.lab.data.fingerprint import Fingerprint
from pfge.lab.data.in_memory.augmentation import Augmentation
from pfge.lab.data.in_memory.batches import EvaluationBatches, TrainingBatches
from pfge.lab.data.in_memory.image_set import DataError, ImageSet, Normalization
from pfge.lab.data.ordering import EpochOrder

Batch: TypeAlias = tuple[Any, Tensor]
"""Inputs and targets; inputs are a tensor, or a tuple or a dict of what the model is called with."""


class TrainingSource(Protocol):
    """Endless batches of inputs and labels that can continue after any iteration."""

    @property
    def per_epoch(self) -> int:
        """The number of batches in an epoch."""

    def starting_after(self, iteration: int, *, every: int = 1) -> Iterator[Batch]:
        """Yield the batches of the iterations after `iteration`, or every n-th of them, without end."""


class EvaluationSource(Protocol):
    """All inputs and labels in a fixed order; can be iterated repeatedly."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


class Labeled(Protocol):
    """Items with targets of which some can be selected."""

    @property
    def labels(self) -> Tensor:
        """The target of each item; class numbers are int64 [N]."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class; none if the targets are not classes."""

    def __len__(self) -> int: ...

    def select(self, indices: Tensor | Sequence[int]) -> Self:
        """Return the items at `indices`, in that order."""

    def fingerprint(self) -> Fingerprint:
        """Return what tells these items apart from others."""


class BatchedPart(Labeled, Protocol):
    """Data that makes its own batches: streamed images, tensors, and the items of a Dataset."""

    def training_batches(self, normalization: Any, order: EpochOrder, delivery: Delivery) -> TrainingSource:
        """Return endless batches of the items that each iteration takes."""

    def evaluation_batches(
        self, normalization: Any, batch_size: int, delivery: Delivery = READ_HERE
    ) -> EvaluationSource:
        """Return all items in order."""


DataPart: TypeAlias = ImageSet | BatchedPart
"""Training, validation or test data of any kind."""

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
) -> TrainingSource:
    """Return training batches of any data.

    Args:
        data: Images in memory or streamed, or data of any other kind.
        normalization: Turns pixels into inputs; None for data of other kinds.
        batch_size: Images in a batch, over all processes.
        seed: Decides order and augmentation.
        augmentation: For images in memory; streamed ones always have a random resized crop and a flip.
        share: Which part of every batch is for this process, and the number of parts.
        workers: Processes that read data which is not in memory.
        device: Where the batches are to be.
        channels_last: Whether the batches have the channels-last memory format.
    """
    if isinstance(data, ImageSet):
        return TrainingBatches(
            data.to(device),
            _required(normalization),
            batch_size=batch_size,
            seed=seed,
            augmentation=augmentation,
            share=share,
            channels_last=channels_last,
        )
    order = EpochOrder(len(data), batch_size=batch_size, seed=seed, share=share)
    return data.training_batches(normalization, order, Delivery(workers, torch.device(device), channels_last))


def evaluation_batches(
    data: DataPart,
    normalization: Normalization | None,
    *,
    batch_size: int,
    workers: int = 0,
    device: torch.device | str = "cpu",
    channels_last: bool = False,
) -> EvaluationSource:
    """Return evaluation batches of any data; the arguments are those of `training_batches`."""
    if isinstance(data, ImageSet):
        return EvaluationBatches(
            data.to(device), _required(normalization), batch_size=batch_size, channels_last=channels_last
        )
    delivery = Delivery(workers, torch.device(device), channels_last)
    return data.evaluation_batches(normalization, batch_size, delivery)


def _required(normalization: Normalization | None) -> Normalization:
    if normalization is None:
        raise DataError("images need a normalization; give the mean and the std of each channel")
    return normalization
