"""Quality of compressed members: divergence of predictions, and sensitivity to errors."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Any

import torch

from pfge.compression.rate_distortion import SMALL, relative_error
from pfge.ensemble import Ensemble
from pfge.errors import InvalidValueError
from pfge.forward import TargetsAt, require_same_order
from pfge.packed.encode import PackSettings, Shared, base_numbers, is_packed, pack_delta, pack_small
from pfge.weights import Weights


@dataclass(frozen=True)
class Quality:
    """How compressed predictions differ from the original's.

    Attributes:
        kl: The task's divergence of pooled predictions: for all tasks of `pfge.tasks` it is
            KL(original || compressed) in nats, the mean over examples, and over positions, labels or numbers;
            for `Raw` that of normal distributions with the variance 1.
        nll_increase: The change of the task's negative log-likelihood; None without targets.

    Example:
        >>> from pfge.compression import Quality
        >>> Quality(kl=0.0005, nll_increase=-0.0002)
        Quality(kl=0.0005, nll_increase=-0.0002)
    """

    kl: float
    nll_increase: float | None


class Judge:
    """The original's predictions, with which those of compressed ensembles are compared.

    Attributes:
        batches: As given.
        targets: As given.

    Args:
        original: Predicts once, here.
        batches: Validation data that can be read again in the same order.
        with_targets: Whether the change of the NLL is measured, which needs targets in the batches.
        targets: Where they are, as of `Ensemble.evaluate`.
    """

    def __init__(
        self, original: Ensemble, batches: Iterable[Any], *, with_targets: bool, targets: TargetsAt = None
    ):
        require_same_order(batches, times=2)
        self._task = original.task
        self.batches = batches
        self.targets = targets
        self._targets = None
        if with_targets and "nll" not in [metric.name for metric in self._task.metrics]:
            raise InvalidValueError(
                f"nll_increase needs a task with a negative log-likelihood, got {self._task}; pass "
                "MaxLoss(kl=...) instead"
            )
        found = [self._task.targets_of(batch, targets).cpu() for batch in batches if with_targets]
        # Before targets are put together, as it says what batches must have in common.
        self._expected = original.predict_batches(batches, targets=targets).cpu()
        if with_targets:
            self._targets = torch.cat(found)

    def measure(self, compressed: Ensemble) -> Quality:
        """Return what a compressed ensemble's predictions have lost."""
        found = compressed.predict_batches(self.batches, targets=self.targets).cpu()
        kl = self._task.divergence(self._expected, found)
        if self._targets is None:
            return Quality(kl, None)
        nll = self._task.metric("nll").compute
        before, after = (nll(self._task.score(p, self._targets)) for p in (self._expected, found))
        return Quality(kl, after - before)


BATCHES = 1
_BITS = 2
_SETTINGS = PackSettings(8, None)
_SMALL_BITS = 4
_LEAST = 1e-12


def measure_sensitivity(
    ensemble: Ensemble, shared: Shared, validation: Iterable[Any], targets: TargetsAt = None
) -> dict[str, float]:
    """Return the divergence of predictions for an error of 1 in each tensor alone, and in all small ones.

    One member predicts the first batch with one tensor at a time in few bits and all others as they are.
    Errors are squares relative to those of the tensor, to which the divergence is proportional where both
    are small.

    Args:
        ensemble: The original.
        shared: What its members have in common.
        validation: Batches.
        targets: As of `Ensemble.predict_batches`.
    """
    batches = list(islice(validation, BATCHES))
    one = ensemble.last(1).uncalibrated()
    member, count = ensemble.members[len(ensemble) - 1], len(ensemble)
    expected = one.predict_batches(batches, targets=targets)
    differing = [name for name in shared.means if name not in shared.identical]
    probes: dict[str, Weights] = {}
    for name in differing:
        base = base_numbers(shared.means[name], _SETTINGS.base_bits)
        tensor = member[name]
        delta = pack_delta(tensor, base, _BITS, _SETTINGS).numbers().view(base.shape)
        probes[name] = {name: (base + delta).to(tensor.dtype)}
    small = [name for name, tensor in member.items() if not is_packed(tensor)]
    if small:
        whole = list(ensemble.members)
        probes[SMALL] = {
            name: pack_small([other[name] for other in whole], _SMALL_BITS).member(count - 1)
            for name in small
        }
    found = {}
    for name, changed in probes.items():
        probe = one.with_members([{**member, **changed}])
        predictions = probe.predict_batches(batches, targets=targets)
        error = sum(relative_error(tensor, member[key]) for key, tensor in changed.items())
        divergence = ensemble.task.divergence(expected, predictions)
        # Predictions that are not finite say that the tensor matters very much.
        found[name] = max(_LEAST, divergence if isfinite(divergence) else 1 / _LEAST) / max(_LEAST, error)
    return found
