"""Pools members' predictions and fits their calibration, with one member in memory at a time."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from pfge.calibration import (
    UNSCALED,
    CalibrateBy,
    PoolingWeights,
    SharedTemperature,
    Temperatures,
    fit_pooling_weights,
    fit_shared_temperature,
)
from pfge.errors import InvalidTypeError, InvalidValueError
from pfge.forward import TargetsAt, require_rereadable, require_same_order, targets_of
from pfge.tasks import Task
from pfge.tasks.classification import require_classification, require_one_class

Predictor: TypeAlias = Callable[[Any], Tensor]
"""Predicts a batch with one member, until another member is put into the same module."""

Keep: TypeAlias = Callable[[Tensor, Any, int], Tensor]
"""Returns the part of a batch's predictions to keep, given the batch and the number of its first example."""


class Accumulator(Protocol):
    """Gets the predictions of one member after another, for the same examples."""

    def add(self, predictions: Tensor, /) -> object:
        """Add one more member's predictions, at its own temperature if it has one."""


AnyAccumulator = TypeVar("AnyAccumulator", bound=Accumulator)


class MemberPool:
    """Members pooled as an ensemble pools them: by its task, with its weights, at its pooled temperature.

    Args:
        task: Pools and calibrates predictions.
        temperatures: The ensemble's weights and its pooled temperature. Members' own temperatures are not
            applied here: `Ensemble.predict_each` has applied them.
        device: Where predictions are added up; where they are if None.

    Example:
        >>> import torch
        >>> from pfge.calibration import Temperatures
        >>> from pfge.prediction import MemberPool
        >>> from pfge.tasks import Classification
        >>> pool = MemberPool(Classification(), Temperatures(pooled=0.5, weights=(0.75, 0.25)))
        >>> pool.add(torch.tensor([[1.0, 0.0]])).add(torch.tensor([[0.0, 1.0]])).uncalibrated
        tensor([[0.7500, 0.2500]], dtype=torch.float64)
        >>> pool.result()  # 9 to 1, in the type of the members' predictions
        tensor([[0.9000, 0.1000]])
    """

    def __init__(self, task: Task, temperatures: Temperatures = UNSCALED, device: torch.device | None = None):
        self._task = task
        self._temperatures = temperatures
        self._device = device
        self._pool = task.pool()
        self._members = 0
        self._dtype = torch.float32

    def add(self, predictions: Tensor, number: int | None = None) -> Self:
        """Add one more member's predictions and return the pool.

        Args:
            predictions: For the same examples as the other members'.
            number: The member's number, which decides its weight; None for the next one.
        """
        weight = self._temperatures.weight_of(self._members if number is None else number)
        self._pool.add(predictions if self._device is None else predictions.to(self._device), weight)
        self._members += 1
        self._dtype = predictions.dtype
        return self

    def add_all(self, members: Iterable[Tensor]) -> Self:
        """Add each member's predictions and return the pool."""
        for predictions in members:
            self.add(predictions)
        return self

    def take(self, index: Tensor) -> "MemberPool":
        """Return a pool of the same members for some of the examples: a mask, or their numbers."""
        taken = copy(self)
        taken._pool = self._pool.take(index)
        return taken

    @property
    def uncalibrated(self) -> Tensor:
        """The pooled prediction without the pooled temperature, in the precision of the pool."""
        return self._pool.result()

    @property
    def predictions(self) -> Tensor:
        """The pooled prediction, in the precision of the pool."""
        return self._task.calibrate(self.uncalibrated, self._temperatures.pooled)

    def result(self) -> Tensor:
        """Return the pooled prediction in the task's type, or that of the members' predictions."""
        return self.predictions.to(self._task.result_type or self._dtype)


def predict_in_turn(
    load: Callable[[int], Predictor], numbers: range, batches: Iterable[Any], keep: Keep | None = None
) -> Iterator[Tensor]:
    """Yield each member's predictions, reading all batches once for each member.

    Args:
        load: Puts the member with a given number into the module.
        numbers: The numbers of the members.
        batches: Batches that can be read again in the same order.
        keep: Returns the part of a batch's predictions to keep; all of them if None.
    """
    _require_batches(batches)
    require_rereadable(batches, len(numbers))
    require_same_order(batches, len(numbers))
    examples = None
    for number in numbers:
        predict = load(number)
        kept: list[Tensor] = []
        done = 0
        for batch in batches:
            predictions = predict(batch)
            kept.append(keep(predictions, batch, done) if keep else predictions)
            done += len(predictions)
        if not kept:
            raise InvalidValueError("predicting needs at least one batch, got none")
        if done != (examples := examples or done):
            raise InvalidValueError(
                f"batches must give the same examples each time they are read, got {examples} and then "
                f"{done} of them"
            )
        yield _put_together(kept)


def predict_in_chunks(
    load: Callable[[int], Predictor], numbers: range, batches: Iterable[Any], chunk_bytes: int
) -> Iterator[tuple[list[Any], Iterator[list[Tensor]]]]:
    """Yield a few batches at a time, and for these each member's predictions, a tensor for each batch.

    Args:
        load: Puts the member with a given number into the module.
        numbers: The numbers of the members.
        batches: Batches of inputs, which are read once.
        chunk_bytes: A chunk ends with the batch at which its batches and one member's predictions for
            them reach this size.
    """
    _require_batches(batches)
    waiting = iter(batches)
    any_yet = False
    while True:
        predict = load(numbers[0])
        chunk: list[Any] = []
        first: list[Tensor] = []
        taken = 0
        for batch in waiting:
            chunk.append(batch)
            first.append(predict(batch))
            taken += _bytes_of(batch) + first[-1].nbytes
            if taken >= chunk_bytes:
                break
        if not chunk:
            break
        any_yet = True
        members = _members_for(load, numbers[1:], chunk, first)
        del first, predict  # which the chunk's reader would otherwise keep alive
        yield chunk, members
    if not any_yet:
        raise InvalidValueError("predicting needs at least one batch, got none")


def require_pairs(batches: Iterable[Any]) -> Iterator[Any]:
    """Return the batches; one that is a tensor, which holds no targets, is refused before it is predicted.

    Somebody who passes one pair in place of a list of pairs would otherwise have the targets predicted.
    """
    _require_batches(batches)

    def checked() -> Iterator[Any]:
        for batch in batches:
            if isinstance(batch, Tensor | PackedSequence):
                targets_of(batch)  # raises
            yield batch

    return checked()


def _require_batches(batches: object) -> None:
    """Refuse a single batch, whose rows or names would be read as batches, and other values."""
    if isinstance(batches, Tensor | Mapping | PackedSequence):
        raise InvalidTypeError(
            f"batches must be a list of batches or a DataLoader, got one {type(batches).__name__}; pass "
            "[batch], or call predict(batch)"
        )
    if not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
        raise InvalidTypeError(
            f"batches must be a list of batches or a DataLoader, got {type(batches).__name__}; pass an "
            "iterable of batches"
        )


def _members_for(
    load: Callable[[int], Predictor], others: range, chunk: list[Any], first: list[Tensor]
) -> Iterator[list[Tensor]]:
    yield first
    del first
    for number in others:
        predict = load(number)
        yield [predict(batch) for batch in chunk]


def _put_together(parts: Sequence[Tensor]) -> Tensor:
    for part in parts[1:]:
        if part.shape[1:] != parts[0].shape[1:]:
            raise InvalidValueError(
                f"batches must have predictions of one shape to be concatenated, got {list(parts[0].shape)} "
                f"and {list(part.shape)}; pad them to one length, predict batches one by one, or "
                "score them with evaluate()"
            )
    return torch.cat(list(parts))


def _bytes_of(batch: Any) -> int:
    """Return the bytes of the tensors in a batch."""
    match batch:
        case Tensor():
            return batch.nbytes
        case Mapping():
            return sum(map(_bytes_of, batch.values()))
        case tuple() | list():
            return sum(map(_bytes_of, batch))
    return 0


class MemberCalibration:
    """Fits the calibration that `Ensemble.calibrated` describes; to a few positions of each mask or text.

    Args:
        task: The members' task.
        targets: Where batches have their targets, as for `Ensemble.evaluate`.
        by: The parameters to fit, as for `Ensemble.calibrated`.
    """

    def __init__(self, task: Task, targets: TargetsAt, by: CalibrateBy):
        self._task = task
        self._targets_at = targets
        self._by = by
        self._targets: dict[int, Tensor] = {}
        if not task.has_calibration:
            raise InvalidValueError(
                f"{task} has no calibration; use the ensemble without calibrated(), or pass a task that has "
                "one, such as Regression()"
            )
        if self._is_pooling:
            require_classification(task, self._what)

    def keep(self, predictions: Tensor, batch: Any, start: int) -> Tensor:
        """Return the part of a batch's predictions to fit to; `start` is the number of its first example."""
        if self._is_pooling:
            require_one_class(predictions, self._what)
        targets = self._task.targets_of(batch, self._targets_at)
        if not targets.ndim or len(targets) != len(predictions):
            raise InvalidValueError(
                f"targets must have one entry for each of {len(predictions)} examples, got shape "
                f"{list(targets.shape)}"
            )
        kept, self._targets[start] = self._task.calibration_sample(predictions, targets)
        return kept

    def fit(self, members: Iterable[Tensor]) -> Temperatures:
        """Return the fitted calibration, given the kept predictions of each member."""
        if self._by == "members":
            return Temperatures(members=tuple(self._fit_one(member) for member in members))
        if self._is_pooling:
            how = _with_weights if self._by == "weights" else _with_shared
            return how(torch.stack(list(members)), self._kept_targets())
        pool = MemberPool(self._task).add_all(members)
        return Temperatures(self._fit_one(pool.predictions))

    @property
    def _is_pooling(self) -> bool:
        """Whether the way in which members are pooled is fitted too."""
        return self._by in ("shared", "weights")

    @property
    def _what(self) -> str:
        return f"calibrating by {self._by!r}"

    def _fit_one(self, predictions: Tensor) -> float | tuple[float, ...]:
        return self._task.fit_calibration(predictions, self._kept_targets())

    def _kept_targets(self) -> Tensor:
        return torch.cat(list(self._targets.values()))


def _with_weights(members: Tensor, targets: Tensor) -> Temperatures:
    found = fit_pooling_weights(members, targets)
    if found.help:
        return Temperatures(found.temperature, weights=found.weights)
    _warn_of_no_help("all members count the same, as weights do not help", found)
    return Temperatures(found.temperature)


def _with_shared(members: Tensor, targets: Tensor) -> Temperatures:
    found = fit_shared_temperature(members, targets)
    if found.help:
        return Temperatures(found.pooled, members=(found.members,) * len(members))
    _warn_of_no_help("only the mean has a temperature, as one of the members does not help", found)
    return Temperatures(found.pooled)


def _warn_of_no_help(what: str, found: PoolingWeights | SharedTemperature) -> None:
    warnings.warn(
        f"{what}: on held-out parts of the examples the NLL changes by {found.difference:+.5f}, with a "
        f"standard error of {found.error:.5f}",
        stacklevel=5,  # the caller of Ensemble.calibrated
    )
