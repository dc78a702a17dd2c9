"""A user's own torch Datasets: splits, and reproducible batches."""

import random
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import TensorDataset, default_collate

from pfge.lab.data.base import DataError, Fingerprint, Normalization, derive_seed, digest
from pfge.lab.data.batches import (
    MAIN_PROCESS,
    Batch,
    BatchKey,
    EpochOrder,
    EvaluationBatches,
    LoadedBatches,
    LoaderOptions,
    TrainingBatches,
    load,
)
from pfge.lab.data.in_memory import as_class_numbers, require_known_classes
from pfge.lab.data.splits import Splits
from pfge.tasks import DEFAULT_TASK, Task

_WORD = 2**32


def seed_globals(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch's CPU, so that they depend on the seed alone."""
    random.seed(seed)
    np.random.seed([seed // _WORD % _WORD, seed % _WORD])
    torch.default_generator.manual_seed(seed)


@contextmanager
def globals_kept() -> Iterator[None]:
    """Let the global generators continue afterwards as if nothing had been drawn from them."""
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(tensors)


class Items(Protocol):
    """A map-style Dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Collate = Callable[[list[Any]], Any]
"""Makes a batch, which is inputs and targets, from a list of items."""


@dataclass(frozen=True)
class ItemBatches(LoadedBatches):
    """Batches of a Dataset by their key.

    Attributes:
        items: The Dataset.
        length: Number of items when the Dataset was opened.
        collate: Makes batches; torch's own function if None.
        classes: Number of classes; 0 if the targets are not classes.
        seed: Decides what items draw from the global random numbers.
        name: Name of the data in errors, such as "training data".
    """

    items: Items
    length: int
    collate: Collate | None
    classes: int
    seed: int
    name: str

    def read(self, key: BatchKey) -> Batch:
        """Return inputs and targets; the global random numbers go on as if nothing had been drawn."""
        with globals_kept(), _one_thread():
            return self._read(key)

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


def _move(inputs: Any, options: LoaderOptions) -> Any:
    match inputs:
        case Tensor():
            moved = inputs.to(options.device, non_blocking=True)
            is_image = options.channels_last and moved.ndim == 4 and moved.is_floating_point()
            return moved.contiguous(memory_format=torch.channels_last) if is_image else moved
        case PackedSequence():
            return inputs.to(options.device)  # type: ignore[arg-type]
        case Mapping():
            return {name: _move(value, options) for name, value in inputs.items()}
        case tuple() | list():
            return tuple(_move(value, options) for value in inputs)
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
        case PackedSequence():
            return f"PackedSequence of {value.batch_sizes[:1].sum()}"
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


_READ_AT_ONCE = 100


@dataclass(frozen=True, eq=False)
class DatasetPart:
    """Some items of a map-style Dataset, which are read when a batch needs them.

    Attributes:
        items: The Dataset.
        name: Name of the data in errors, such as "training data".
        class_names: Name of each class; empty if the targets are not classes.
        collate: Makes batches; torch's own function if None.
        workers: Processes that read the targets.
        indices: Indices of the items, in order.
        length: Number of items of the Dataset when it was opened.
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
            DataError: `items` is not a map-style Dataset.
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
        """The target of each item; the first use reads all items."""
        batches = self.evaluation_batches(None, _READ_AT_ONCE, LoaderOptions(self.workers))
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
        """Size of the second dimension of the inputs; None unless they are one floating-point tensor."""
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
        self, _normalization: Normalization | None, order: EpochOrder, options: LoaderOptions
    ) -> TrainingBatches:
        """Return endless shuffled batches."""
        return TrainingBatches(order, partial(self._read, order.seed, options))

    def evaluation_batches(
        self, _normalization: Normalization | None, batch_size: int, options: LoaderOptions = MAIN_PROCESS
    ) -> EvaluationBatches:
        """Return all items in order; what they draw at random is the same in every pass."""
        return EvaluationBatches(len(self), batch_size, partial(self._read, 0, options))

    def _read(self, seed: int, options: LoaderOptions, keys: Iterable[BatchKey]) -> Iterator[Batch]:
        """Yield batches on the device of the options."""
        classes = len(self.class_names)
        batches = ItemBatches(self.items, self.length, self.collate, classes, seed, self.name)
        in_items = (replace(key, indices=key.of(self.indices)) for key in keys)
        for inputs, targets in load(batches, in_items, options):
            yield _move(inputs, options), targets.to(options.device, non_blocking=True)

    def _some_items(self) -> list[Batch]:
        places = sorted({0, len(self) // 2, len(self) - 1}) if len(self) else []
        return list(self.select(places).evaluation_batches(None, batch_size=1))

    def _first(self) -> Batch:
        return next(iter(self.select([0]).evaluation_batches(None, batch_size=1)))


@dataclass(frozen=True, eq=False, kw_only=True)
class DatasetSplits:
    """Three Datasets with items (inputs, target).

    Inputs are a tensor, a tuple of the model's arguments or a dict of its keyword arguments. An item may draw
    from the global random numbers of Python, numpy and torch: they are seeded for it, by the run's seed,
    the epoch and its index, so what it draws is the same in every process and after a kill. A generator that
    the Dataset keeps itself is not seeded.

    Attributes:
        train: A map-style `torch.utils.data.Dataset`.
        validation: A Dataset; None takes `data.validation` items out of `train`, with its random
            augmentation.
        test: A Dataset.
        classes: Names of the classes, or their number; 0 if the targets are not classes.
        collate: Makes inputs and targets of a batch from a list of items; torch's own function if None.
        task: Meaning of outputs and targets; one class for each item by default.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from pfge.lab.data import DatasetSplits
        >>> rows = TensorDataset(torch.zeros(100, 5), torch.arange(100) % 2)
        >>> splits = DatasetSplits(train=rows, test=rows, classes=("no", "yes")).opened()
        >>> len(splits.train), splits.train.class_names, splits.channels
        (100, ('no', 'yes'), 5)
    """

    train: Items
    validation: Items | None = None
    test: Items
    classes: int | Sequence[str] = 0
    collate: Collate | None = None
    task: Task = DEFAULT_TASK

    def opened(self, workers: int = 0) -> Splits:
        """Return the splits that the lab works with.

        Args:
            workers: Processes that read items.

        Raises:
            DataError: One of the three is not a map-style Dataset.
        """
        numbered = isinstance(self.classes, int)
        names = tuple(map(str, range(self.classes) if numbered else self.classes))  # type: ignore[arg-type]

        def part(items: Items, name: str) -> DatasetPart:
            return DatasetPart.of_all(items, name, names, self.collate, workers)

        train = part(self.train, "training data")
        return Splits(
            train=train,
            validation=train.select([])
            if self.validation is None
            else part(self.validation, "validation data"),
            test=part(self.test, "test data"),
            task=self.task,
        )
