"""What an ensemble's members are calibrated by, fitted to their predictions."""

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor

from pfge.calibration import (
    CalibrateBy,
    PoolingWeights,
    SharedTemperature,
    Temperatures,
    fit_pooling_weights,
    fit_shared_temperature,
)
from pfge.tasks import Task
from pfge.tasks.classification import require_classification, require_one_class


class MemberCalibration:
    """Fits what `Ensemble.calibrated` says; of masks and texts, to a few positions of each.

    Args:
        task: Of the members.
        targets: The true answer of each example.
        by: What is fitted.
    """

    def __init__(self, task: Task, targets: Tensor, by: CalibrateBy):
        self._task = task
        self._targets = targets
        self._by = by
        self._kept: dict[int, Tensor] = {}
        self._examples = 0
        if self._is_pooling:
            require_classification(task, self._what)

    def keep(self, predictions: Tensor, start: int) -> Tensor:
        """Return what of a batch's predictions it is fitted to; `start` is the first example's number."""
        if self._is_pooling:
            require_one_class(predictions, self._what)
        end = start + len(predictions)
        self._examples = max(self._examples, end)
        kept, self._kept[start] = self._task.calibration_sample(predictions, self._targets[start:end])
        return kept

    def fit(self, members: Iterable[Tensor]) -> Temperatures:
        """Return what is found, given what was kept of each member."""
        if self._by == "members":
            return Temperatures(members=tuple(self._fit_one(member) for member in members))
        if self._is_pooling:
            how = _with_weights if self._by == "weights" else _with_shared
            return how(torch.stack(list(members)), self._kept_targets())
        pool = self._task.pool()
        for member in members:
            pool.add(member)
        return Temperatures(self._fit_one(pool.result()))

    @property
    def _is_pooling(self) -> bool:
        """Whether more than temperatures by themselves is fitted: also how members are pooled."""
        return self._by in ("shared", "weights")

    @property
    def _what(self) -> str:
        return f"calibrating by {self._by!r}"

    def _fit_one(self, predictions: Tensor) -> float | tuple[float, ...]:
        return self._task.fit_calibration(predictions, self._kept_targets())

    def _kept_targets(self) -> Tensor:
        if self._examples != len(self._targets):
            raise ValueError(
                f"each of {self._examples} examples has a target, got {len(self._targets)} of them"
            )
        return torch.cat(list(self._kept.values()))


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
