"""A part of a user's data: some items of a Dataset, and batches of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from pfge.lab.data.datasets.reader import BatchKey, Collate, ItemBatches, Items, read_batches
from pfge.lab.data.delivery import READ_HERE, Delivery
from pfge.lab.data.fingerprint import Fingerprint, digest
from pfge.lab.data.in_memory.image_set import DataError
from pfge.lab.data.ordering import EpochOrder
from pfge.lab.data.sources import Batch

_READ_AT_ONCE = 100


@dataclass(frozen=True, eq=False)
class DatasetPart:
    """Some items of a map-style Dataset, which are read when a batch needs them.

    Attributes:
        items: The Dataset.
        name: What this part is called in errors, such as "training data".
        class_names: What each class number stands for; empty if the targets are not classes.
        collate: Makes batches; torch's own function if None.
        workers: Processes that read the targets.
        indices: Which items, in their order.
        length: How many items the Dataset had when it was opened.
    """

    items: Items
    name: str
    class_names: tuple[str, ...]
    collate: Collate | None
    workers: int
    indices: Tensor
    length: int

    @classmethod
    def of_all(
        cls, items: Items, name: str, class_names: tuple[str, ...], collate: Collate | None, workers: int
    ) -> "DatasetPart":
        """Return all items of a Dataset.

        Raises:
            DataError: It is not a map-style Dataset.
        """
        if not hasattr(items, "__getitem__") or not hasattr(items, "__len__"):
            raise DataError(
                f"the {name} must be a map-style Dataset, with __len__ and __getitem__, got "
                f"{type(items).__name__}; an IterableDataset has no items that can be read again"
            )
        length = len(items)
        return cls(items, name, class_names, collate, workers, torch.arange(length), length)

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def labels(self) -> Tensor:
        """The target of each item, which are read once for this."""
        batches = self.evaluation_batches(None, _READ_AT_ONCE, Delivery(self.workers))
        found = [targets for _, targets in batches]
        if len({targets.shape[1:] for targets in found}) > 1:
            shapes = sorted({str(list(targets.shape[1:])) for targets in found})
            raise DataError(
                f"targets of the {self.name} must have one shape in all batches, got {' and '.join(shapes)}; "
                "let the collate function pad them to one length"
            )
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)

    @cached_property
    def channels(self) -> int | None:
        """The size of the second dimension of inputs that are one tensor of floating point, if they are."""
        inputs, _ = self._first()
        is_tensor = isinstance(inputs, Tensor) and inputs.is_floating_point() and inputs.ndim > 1
        return inputs.shape[1] if is_tensor else None

    def select(self, indices: Tensor | Sequence[int]) -> "DatasetPart":
        """Return the items at `indices`, in that order."""
        return replace(self, indices=self.indices[torch.as_tensor(indices, dtype=torch.int64)])

    def fingerprint(self) -> Fingerprint:
        """Return what tells these items apart from others, from their tensors in memory or three of them.

        Targets count if the Dataset has all of them as `targets`. Items that differ when they are read
        again, by a generator of the Dataset's own, do not count.
        """
        targets: Any = getattr(self.items, "targets", None)
        is_all = isinstance(targets, Tensor | np.ndarray | list) and len(targets) == self.length
        known = [targets[index] for index in self.indices.tolist()] if is_all else None
        in_memory = self.items.tensors if type(self.items) is TensorDataset else ()
        content = {digest(self.indices, in_memory, self._some_items()) for _ in range(2)}
        return Fingerprint(
            "items",
            len(self),
            "" if known is None else digest(known, self.class_names),
            content.pop() if len(content) == 1 else "",
        )

    def training_batches(
        self, _normalization: None, order: EpochOrder, delivery: Delivery
    ) -> "DatasetTraining":
        """Return endless shuffled batches."""
        return DatasetTraining(self, order, delivery)

    def evaluation_batches(
        self, _normalization: None, batch_size: int, delivery: Delivery = READ_HERE
    ) -> "DatasetEvaluation":
        """Return all items in order; what they draw at random is the same in every pass."""
        return DatasetEvaluation(self, batch_size, delivery)

    def batches(self, seed: int) -> ItemBatches:
        """Return batches by key."""
        return ItemBatches(self.items, self.length, self.collate, len(self.class_names), seed, self.name)

    def _some_items(self) -> list[Batch]:
        places = sorted({0, len(self) // 2, len(self) - 1}) if len(self) else []
        return list(self.select(places).evaluation_batches(None, batch_size=1))

    def _first(self) -> Batch:
        return next(iter(self.select([0]).evaluation_batches(None, batch_size=1)))


class DatasetTraining:
    """Endless training batches; each is a pure function of the seed and the iteration."""

    def __init__(self, part: DatasetPart, order: EpochOrder, delivery: Delivery) -> None:
        self._indices = part.indices
        self._batches = part.batches(order.seed)
        self._order = order
        self._delivery = delivery

    @property
    def per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return self._order.per_epoch

    def starting_after(self, iteration: int, *, every: int = 1) -> Iterator[Batch]:
        """Yield the batches of the iterations after `iteration`, or every n-th of them, without end."""
        keys = map(self._key, count(iteration + 1, every))
        return read_batches(self._batches, keys, self._delivery)

    def _key(self, iteration: int) -> BatchKey:
        epoch = (iteration - 1) // self.per_epoch
        return BatchKey(iteration, epoch, tuple(self._indices[self._order.at(iteration)].tolist()))


class DatasetEvaluation:
    """All items in their own order; can be iterated repeatedly."""

    def __init__(self, part: DatasetPart, batch_size: int, delivery: Delivery) -> None:
        if batch_size < 1:
            raise DataError(f"batch_size must be at least 1, got {batch_size}")
        self._indices = part.indices
        self._batches = part.batches(seed=0)
        self._starts = range(0, len(part), batch_size)
        self._delivery = delivery

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Batch]:
        keys = (
            BatchKey(number, 0, tuple(self._indices[start : start + self._starts.step].tolist()))
            for number, start in enumerate(self._starts)
        )
        return read_batches(self._batches, keys, self._delivery)
