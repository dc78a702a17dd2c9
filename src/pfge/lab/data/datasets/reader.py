"""Read batches of a Dataset, here or in worker processes, each as a function of a seed and its number."""

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from pfge.lab.data.datasets.random_state import globals_kept, seed_globals
from pfge.lab.data.delivery import Delivery
from pfge.lab.data.in_memory.image_set import DataError
from pfge.lab.data.in_memory.tensor_set import as_class_numbers, require_known_classes
from pfge.lab.data.seeding import derive_seed
from pfge.lab.data.sources import Batch


class Items(Protocol):
    """A map-style Dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Collate = Callable[[list[Any]], Any]
"""Makes a batch, which is inputs and targets, from a list of items."""


@dataclass(frozen=True)
class BatchKey:
    """Which items are in a batch.

    Attributes:
        number: Of the batch; what the collate function draws depends on it.
        epoch: What the items draw depends on it, and on their index.
        indices: Of the items in the Dataset.
    """

    number: int
    epoch: int
    indices: tuple[int, ...]


@dataclass(frozen=True)
class _Failure:
    """What went wrong; the main process raises it, as an error from a worker would be a traceback."""

    message: str


@dataclass(frozen=True)
class ItemBatches(Dataset[Any]):
    """Batches of a Dataset by their key.

    Attributes:
        items: The Dataset.
        length: How many items it had when it was opened.
        collate: Makes batches; torch's own function if None.
        classes: How many there are; 0 if the targets are not classes.
        seed: Decides what items draw from the global random numbers.
        name: What the data is called in errors, such as "training data".
    """

    items: Items
    length: int
    collate: Collate | None
    classes: int
    seed: int
    name: str

    def __getitem__(self, key: BatchKey) -> Any:
        """Return inputs and targets, or a failure."""
        try:
            with globals_kept(), _one_thread():
                return self._read(key)
        except DataError as error:
            return _Failure(str(error))

    def _read(self, key: BatchKey) -> Batch:
        if len(self.items) != self.length:
            raise DataError(
                f"the {self.name} had {self.length:,} items when it was opened and has {len(self.items):,} "
                "now; a Dataset must keep its length"
            )
        items = []
        for index in key.indices:
            seed_globals(derive_seed(self.seed, "item", key.epoch, index))
            items.append(self._item(index))
        seed_globals(derive_seed(self.seed, "collate", key.number))
        batch = self._put_together(items, key)
        return self._checked(batch, len(items))

    def _item(self, index: int) -> Any:
        try:
            return self.items[index]
        except Exception as error:  # it is the user's code
            raise DataError(f"item {index} of the {self.name} cannot be read: {_describe(error)}") from error

    def _put_together(self, items: list[Any], key: BatchKey) -> Any:
        if self.collate is not None:
            try:
                return self.collate(items)
            except Exception as error:  # it is the user's code
                raise DataError(
                    f"the collate function cannot make a batch of {len(items)} items of the {self.name}: "
                    f"{_describe(error)}"
                ) from error
        for index, item in zip(key.indices, items, strict=True):
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise DataError(
                    f"an item must be (inputs, target), got {_shape(item)} for item {index} of the "
                    f"{self.name}; return a pair, or give DatasetSplits a collate function"
                )
            if _shape(item) != _shape(items[0]):
                raise DataError(
                    f"items must have the same shapes to be put together, got {_shape(items[0])} for item "
                    f"{key.indices[0]} of the {self.name} and {_shape(item)} for item {index}; "
                    "make them alike, or give DatasetSplits a collate function that does"
                )
        try:
            inputs, targets = default_collate(items)
        except (TypeError, RuntimeError) as error:
            raise DataError(
                f"items of the {self.name} cannot be put together: {_first_line(error)}; return tensors, or "
                "give DatasetSplits a collate function"
            ) from error
        # A Python float becomes float64, and models are float32.
        return inputs, targets.float() if _is_double(targets) else targets

    def _checked(self, batch: Any, count: int) -> Batch:
        if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[1], Tensor):
            raise DataError(
                f"a batch must be inputs and a tensor of targets, got {_shape(batch)} of the {self.name}; "
                "return such a pair from the collate function"
            )
        inputs, targets = batch
        if not targets.ndim or len(targets) != count:
            raise DataError(
                f"a batch must have one target for each of its {count} items, got targets "
                f"{list(targets.shape)} of the {self.name}; do not leave items out"
            )
        targets = as_class_numbers(targets, self.classes)
        try:
            require_known_classes(targets, self.classes)
        except DataError as error:
            raise DataError(f"{self.name}: {error}") from None
        return inputs, targets


def read_batches(batches: ItemBatches, keys: Iterable[BatchKey], delivery: Delivery) -> Iterator[Batch]:
    """Yield batches on a device, which the workers read ahead; without workers this process reads.

    Raises:
        DataError: An item or a batch is not what it must be.
    """
    if delivery.workers == 0:
        read: Iterable[Any] = map(batches.__getitem__, keys)
    else:
        read = DataLoader(
            batches,
            sampler=keys,
            batch_size=None,
            num_workers=delivery.workers,
            collate_fn=_unchanged,
            pin_memory=delivery.device.type == "cuda",
            # A loader draws a number for its workers; without this it would take it from the global stream.
            generator=torch.Generator(),
        )
    for batch in read:
        if isinstance(batch, _Failure):
            raise DataError(batch.message)
        inputs, targets = batch
        yield _move(inputs, delivery), targets.to(delivery.device, non_blocking=True)


def _unchanged(batch: Any) -> Any:
    return batch


def _move(inputs: Any, delivery: Delivery) -> Any:
    match inputs:
        case Tensor():
            moved = inputs.to(delivery.device, non_blocking=True)
            is_image = delivery.channels_last and moved.ndim == 4 and moved.is_floating_point()
            return moved.contiguous(memory_format=torch.channels_last) if is_image else moved
        case Mapping():
            return {name: _move(value, delivery) for name, value in inputs.items()}
        case tuple() | list():
            return tuple(_move(value, delivery) for value in inputs)
    return inputs


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute as a worker does: the order of a sum, and so its last bit, depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _is_double(targets: Any) -> bool:
    return isinstance(targets, Tensor) and targets.dtype == torch.float64


def _shape(value: Any) -> str:
    """Return the structure of an item, with the shapes of its tensors and arrays."""
    match value:
        case tuple() | list():
            return f"({', '.join(map(_shape, value))})"
        case Mapping():
            return "{" + ", ".join(f"{name}: {_shape(item)}" for name, item in value.items()) + "}"
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else str(list(shape))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _describe(error: Exception) -> str:
    """Return an error of the user's code in one line, with its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {_first_line(error)} ({place.filename}, line {place.lineno})"
