"""Training, validation and test data, and how one is split off another."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from pfge.lab.data.base import DataError, Fingerprint, Normalization, generator
from pfge.lab.data.batches import DataPart, Labeled
from pfge.tasks import DEFAULT_TASK, Task


class LabelProxy(ABC):
    """Items with the targets of the items that they are made from, one each."""

    @property
    @abstractmethod
    def origin(self) -> Labeled:
        """The items that these are made from, one each."""

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
    """The three splits of a data set, of which `validation` may be empty, and its task."""

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
        """Description of the number of examples in each split."""
        return (
            f"{len(self.train):,} training, {len(self.validation):,} validation and {len(self.test):,} test "
            "examples"
        )

    @property
    def channels(self) -> int | None:
        """Number of channels of an image or a signal, or of features of a table; None for other inputs."""
        return len(self.normalization.mean) if self.normalization else getattr(self.train, "channels", None)

    def normalization_for(self, purpose: str) -> Normalization:
        """Return the normalization; raise an error that names the purpose if the data is not pictures."""
        if self.normalization is None:
            raise DataError(f"{purpose} needs pictures, and this data is of another kind; leave it out")
        return self.normalization

    def for_evaluation(self) -> dict[str, DataPart]:
        """Return the splits that an ensemble is measured on, by name, without empty ones."""
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
        seed: Decides the choice; the same seed always takes the same images.
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


def validation_from_test(test: AnyLabeled, seed: int) -> tuple[AnyLabeled, AnyLabeled]:
    """Return two fixed halves of a test set, class by class: validation and test.

    Use it with start weights that were trained on all training data, which therefore cannot serve for
    validation.
    """
    first, second = stratified(test.labels, len(test) // 2, seed)
    return test.select(first), test.select(second)


def take(data: AnyLabeled, count: int, seed: int, *, part: str) -> AnyLabeled:
    """Return a fixed choice of that many images, class by class; 0 means all.

    Args:
        data: Data to choose from.
        count: Number of images.
        seed: Decides the choice; the same seed always takes the same images.
        part: Name of the data in an error.
    """
    if not 0 <= count <= len(data):
        raise DataError(
            f"{part} has {len(data)} images, so from 1 to {len(data)} can be taken, or 0 for all, got {count}"
        )
    return data.select(stratified(data.labels, count, seed)[0]) if count else data


def stratified(labels: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return `count` indices that keep the proportions of the classes, and all others.

    Labels that are not one class number for each item count as one class. Both lists are in
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
