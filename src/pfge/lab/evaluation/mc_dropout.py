"""One model whose dropout stays on at test time: each member is a pass with other units dropped."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from pfge.ensemble import Ensemble
from pfge.lab.data.seeding import derive_seed
from pfge.storage.lazy_members import LazyMembers
from pfge.weights import Weights, count_bytes


def has_dropout(model: nn.Module) -> bool:
    """Tell whether a model drops anything."""
    return any(layer.p > 0 for layer in _dropout_layers(model))


class MCDropout(Ensemble):
    """Monte Carlo dropout (Gal and Ghahramani, 2016) as an ensemble, in the memory of one model.

    What a pass drops depends on the seed, the number of the member and that of the batch, so two readings
    of the same batches give the same predictions.

    Args:
        weights: Of the one model.
        build_model: Returns a module of that architecture, with dropout.
        samples: How many passes are pooled.
        seed: Decides what is dropped.
        device: Where it predicts.
        forward: As of an ensemble.
    """

    def __init__(
        self,
        weights: Weights,
        build_model: Callable[[], nn.Module],
        *,
        samples: int,
        seed: int,
        device: torch.device,
        forward: Callable[[nn.Module, Any], Tensor] | None = None,
    ):
        members = LazyMembers(samples, lambda _: weights)
        super().__init__(members, build_model, method=f"MCDropout({samples})", forward=forward)
        self.device = device
        self._weights = weights
        self._seed = seed
        self._member = self._batch = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the one model."""
        return count_bytes(self._weights)

    def _modules(self) -> Iterator[nn.Module]:
        for number, module in enumerate(super()._modules()):
            self._member, self._batch = number, 0
            for layer in _dropout_layers(module):
                layer.train()
            yield module

    def _probabilities(self, module: nn.Module, x: Any, temperature: float) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(derive_seed(self._seed, "dropped", self._member, self._batch))
            self._batch += 1
            return super()._probabilities(module, x, temperature)


def _dropout_layers(model: nn.Module) -> list[_DropoutNd]:
    return [layer for layer in model.modules() if isinstance(layer, _DropoutNd)]
