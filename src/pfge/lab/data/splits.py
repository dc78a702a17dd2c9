"""Training, validation and test data, and the sources of their batches."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import torch
from torch import Tensor

from pfge.lab.data.base import (
    MAIN_PROCESS,
    DataError,
    EpochOrder,
    Fingerprint,
    ImageSet,
    LoaderOptions,
    Normalization,
    generator,
)
from pfge.lab.data.in_memory import Augmentation, EvaluationBatches, TrainingBatches
from pfge.tasks import Task
from pfge.tasks.manifest import DEFAULT_TASK

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

    def training_batches(
        self, normalization: Any, order: EpochOrder, options: LoaderOptions
    ) -> TrainingSource:
        """Return endless batches of the items that each iteration takes."""

    def evaluation_batches(
        self, normalization: Any, batch_size: int, options: LoaderOptions = MAIN_PROCESS
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
    return data.training_batches(
        normalization, order, LoaderOptions(workers, torch.device(device), channels_last)
    )


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
    options = LoaderOptions(workers, torch.device(device), channels_last)
    return data.evaluation_batches(normalization, batch_size, options)


def _required(normalization: Normalization | None) -> Normalization:
    if normalization is None:
        raise DataError("images need a normalization; give the mean and the std of each channel")
    return normalization


class LabelProxy(ABC):
    """Items that have the targets of those that they are made from."""

    @property
    @abstractmethod
    def origin(self) -> Labeled:
        """What the items are made from, one each."""

    @property
    def labels(self) -> Tensor:
        """The target of each item; class numbers are int64 [N]."""
        return self.origin.labels

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class."""
        return self.origin.class_names

    def __len__(self) -> int:
        return len(self.origin)

    def fingerprint(self) -> Fingerprint:
        """Return what tells the items' origin apart from others."""
        return self.origin.fingerprint()


AnyLabeled = TypeVar("AnyLabeled", bound=Labeled)


@dataclass(frozen=True, eq=False, kw_only=True)
class Splits:
    """The three parts of a data set, of which `validation` may be empty, and the task that it is for."""

    train: DataPart
    validation: DataPart
    test: DataPart
    normalization: Normalization | None = None  # of pictures
    task: Task = DEFAULT_TASK

    def __post_init__(self) -> None:
        for name in ("validation", "test"):
            part: DataPart = getattr(self, name)
            if part.class_names != self.train.class_names:
                raise DataError(
                    f"train and {name} must have the same classes, "
                    f"got {self.train.class_names} and {part.class_names}"
                )

    @property
    def sizes(self) -> str:
        """The number of examples in each part, in words."""
        return (
            f"{len(self.train):,} training, {len(self.validation):,} validation and {len(self.test):,} test "
            "examples"
        )

    @property
    def channels(self) -> int | None:
        """How many channels an image or a signal has, or features a row; None for inputs of other kinds."""
        return len(self.normalization.mean) if self.normalization else getattr(self.train, "channels", None)

    def normalization_for(self, purpose: str) -> Normalization:
        """Return the normalization; raise an error that names the purpose if the data is not pictures."""
        if self.normalization is None:
            raise DataError(f"{purpose} needs pictures, and this data is of another kind; leave it out")
        return self.normalization

    def for_evaluation(self) -> dict[str, DataPart]:
        """Return the parts that an ensemble is measured on, by name, without empty ones."""
        parts = {"test": self.test, "validation": self.validation}
        return {name: part for name, part in parts.items() if len(part)}


def split(
    full_train: DataPart,
    test: DataPart,
    normalization: Normalization | None,
    *,
    validation: int | float,
    seed: int,
) -> Splits:
    """Return splits whose validation part is taken out of the training data, class by class.

    Args:
        full_train: All training data.
        test: Test data, left as it is.
        normalization: Turns pixels into inputs; None for data of other kinds.
        validation: The number of validation images (int) or their share of `full_train` (float);
            may be 0.
        seed: Decides which images these are; the same seed always takes the same ones.
    """
    total = len(full_train)
    is_share = isinstance(validation, float)
    is_possible = 0 <= validation < (1 if is_share else total)  # not of NaN, which cannot be rounded
    wanted = round(validation * total if is_share else validation) if is_possible else total
    if wanted >= total:
        raise DataError(
            f"validation must be a number of images from 0 to {total - 1}, or a fraction from 0.0 to "
            f"below 1.0, got {validation!r}"
        )
    if wanted == 0 and validation:
        raise DataError(
            f"validation must be 0 or give at least 1 image, got {validation!r} of {total}; give a larger "
            "share, or a number of images"
        )
    if wanted == 0:
        train, held_out = full_train, full_train.select([])  # avoids a copy of all images
    else:
        chosen, rest = stratified(full_train.labels, wanted, seed)
        train, held_out = full_train.select(rest), full_train.select(chosen)
    return Splits(train=train, validation=held_out, test=test, normalization=normalization)


def halve_test(test: AnyLabeled, seed: int) -> tuple[AnyLabeled, AnyLabeled]:
    """Return two fixed halves of a test set, class by class: validation and test.

    For start weights that have already seen all training data, where no honest validation part is
    left in it.
    """
    first, second = stratified(test.labels, len(test) // 2, seed)
    return test.select(first), test.select(second)


def take(data: AnyLabeled, count: int, seed: int, *, part: str) -> AnyLabeled:
    """Return a fixed choice of that many images, class by class; 0 means all.

    Args:
        data: What to choose from.
        count: How many.
        seed: Decides which; the same seed always takes the same ones.
        part: What the data is called in an error.
    """
    if not 0 <= count <= len(data):
        raise DataError(
            f"{part} has {len(data)} images, so from 1 to {len(data)} can be taken, or 0 for all, got {count}"
        )
    return data.select(stratified(data.labels, count, seed)[0]) if count else data


def stratified(labels: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return `count` indices that keep the proportions of the classes, and all others.

    Labels that are not one class number for each item are taken for one class. Both are in
    ascending order. A class gets its proportional number rounded down; those still missing go to
    the classes with the largest remainders.
    """
    if labels.ndim != 1 or labels.is_floating_point():
        labels = torch.zeros(len(labels), dtype=torch.int64)
    labels = labels.to("cpu", torch.int64)
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    if len(labels) > 0:
        numbers, sizes = torch.unique(labels, return_counts=True)
        quotas = sizes * count // len(labels)
        remainders = sizes * count % len(labels)
        largest = remainders.argsort(descending=True, stable=True)
        quotas[largest[: count - int(quotas.sum())]] += 1
        for label, quota in zip(numbers.tolist(), quotas.tolist(), strict=True):
            members = (labels == label).nonzero().flatten()
            order = torch.randperm(len(members), generator=generator(seed, "split", label))
            chosen[members[order[:quota]]] = True
    return chosen.nonzero().flatten(), (~chosen).nonzero().flatten()
