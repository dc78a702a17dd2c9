"""Examples held whole in memory as two tensors: tables, signals and whatever else needs no augmentation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import torch
from torch import Tensor

from pfge.lab.data.delivery import READ_HERE, Delivery
from pfge.lab.data.fingerprint import Fingerprint, digest
from pfge.lab.data.in_memory.image_set import DataError
from pfge.lab.data.ordering import EpochOrder


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
        self, _normalization: None, order: EpochOrder, delivery: Delivery
    ) -> "TensorTraining":
        """Return endless shuffled batches."""
        return TensorTraining(self.to(delivery.device), order)

    def evaluation_batches(
        self, _normalization: None, batch_size: int, delivery: Delivery = READ_HERE
    ) -> "TensorEvaluation":
        """Return all examples in order."""
        return TensorEvaluation(self.to(delivery.device), batch_size)


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
