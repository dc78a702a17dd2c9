"""What compression costs: how far its predictions are from those of the original."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from pfge.ensemble import Ensemble
from pfge.forward import require_same_order, targets_of


@dataclass(frozen=True)
class Quality:
    """How compressed predictions differ from the original's.

    Attributes:
        kl: The task's divergence of pooled predictions: for all tasks of `pfge.tasks` it is
            KL(original || compressed) in nats, the mean over examples, and over positions, labels or numbers.
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

    Args:
        original: Predicts once, here.
        batches: Validation data that can be read again in the same order.
        with_targets: Whether the second entry of each batch is its targets.
    """

    def __init__(self, original: Ensemble, batches: Iterable[Any], *, with_targets: bool):
        require_same_order(batches, times=2)
        self._task = original.task
        self.batches = batches
        self._targets = torch.cat([targets_of(batch).cpu() for batch in batches]) if with_targets else None
        self._expected = original.predict_batches(batches).cpu()

    def measure(self, compressed: Ensemble) -> Quality:
        """Return what a compressed ensemble's predictions have lost."""
        found = compressed.predict_batches(self.batches).cpu()
        kl = self._task.divergence(self._expected, found)
        if self._targets is None:
            return Quality(kl, None)
        nll = self._task.metric("nll").compute
        before, after = (nll(self._task.score(p, self._targets)) for p in (self._expected, found))
        return Quality(kl, after - before)
