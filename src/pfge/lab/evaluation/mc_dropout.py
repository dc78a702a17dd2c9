"""Monte Carlo dropout: each member is a pass of one model with other units dropped."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pfge.ensemble import Ensemble
from pfge.forward import call_model
from pfge.lab.data.seeding import derive_seed
from pfge.lab.models.dropout import dropout_layers
from pfge.storage.lazy_members import LazyMembers
from pfge.tasks import Task
from pfge.tasks.manifest import DEFAULT_TASK
from pfge.weights import Weights, count_bytes


def mc_dropout(
    weights: Weights,
    build_model: Callable[[], nn.Module],
    *,
    samples: int,
    seed: int,
    task: Task = DEFAULT_TASK,
    forward: Callable[[nn.Module, Any], Any] | None = None,
) -> Ensemble:
    """Return Monte Carlo dropout (Gal and Ghahramani, 2016) as an ensemble, in the memory of one model.

    What a pass drops depends on the seed, the number of the member and that of the batch, so two readings
    of the same batches give the same predictions.

    Args:
        weights: Of the one model.
        build_model: Returns a module of that architecture, with dropout.
        samples: How many passes are pooled.
        seed: Decides what is dropped.
        task: As of an ensemble.
        forward: As of an ensemble.
    """
    passes = _Passes(weights, seed, forward or call_model)
    members = LazyMembers(samples, passes.begin, nbytes=count_bytes(weights))
    return Ensemble(members, build_model, task=task, method=f"MCDropout({samples})", forward=passes.forward)


class _Passes:
    """The one model's weights as every member, and its forward pass with dropout on.

    An ensemble asks for a member's weights whenever it begins to predict with it, and then calls `forward` on
    one batch after another. That is how the numbers of the member and of the batch are known here.
    """

    def __init__(self, weights: Weights, seed: int, forward: Callable[[nn.Module, Any], Any]):
        self._weights = weights
        self._seed = seed
        self._forward = forward
        self._member = self._batch = 0

    def begin(self, member: int) -> Weights:
        """Return the weights of a member, whose first batch comes next."""
        self._member, self._batch = member, 0
        return self._weights

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Call the model on the next batch of the member."""
        for layer in dropout_layers(model):
            layer.train()
        with torch.random.fork_rng():
            torch.manual_seed(derive_seed(self._seed, "dropped", self._member, self._batch))
            self._batch += 1
            return self._forward(model, batch)
