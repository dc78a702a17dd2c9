"""Other weights in a model for a while: what they replace comes back bit for bit."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from pfge.batch_norm import FrozenLayers, refresh_batch_norm
from pfge.forward import keep_modes
from pfge.sharding import keep_parts_only
from pfge.weights import Weights, load_weights, unwrap

_holding: WeakSet[nn.Module] = WeakSet()  # modules that hold other weights than their own


@contextmanager
def apply_weights(
    model: nn.Module,
    weights: Weights,
    batches: Iterable[Any] | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    frozen: FrozenLayers = "keep",
) -> Iterator[None]:
    """Put weights into a model, and at the end its own parameters, buffers, modes and the random state.

    Args:
        model: The model; its wrappers are looked through.
        weights: What it holds inside of the block.
        batches: Where given, BatchNorm statistics are computed over them first.
        forward: As in `refresh_batch_norm`.
        frozen: As in `refresh_batch_norm`.
    """
    module = unwrap(model)
    require_own_weights(module)
    _holding.add(module)
    keep_parts_only(module)
    tensors = [*module.parameters(), *module.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    buffers = [(part._buffers, dict(part._buffers)) for part in module.modules()]
    try:
        with keep_modes(module), torch.random.fork_rng():
            load_weights(module, weights)
            if batches is not None:
                refresh_batch_norm(module, batches, forward=forward, frozen=frozen)
            yield
    finally:
        keep_parts_only(module)
        _restore(tensors, before)
        torch.clear_autocast_cache()  # as in load_weights
        for table, entries in buffers:  # some modules replace a buffer instead of writing to it
            table.update(entries)
        _holding.discard(module)


def require_own_weights(model: nn.Module) -> None:
    """Refuse a model that holds other weights, which would be lost, averaged or mistaken for its own."""
    if unwrap(model) in _holding:
        raise RuntimeError(
            "the model holds the weights of an applied() block; leave the block before another applied() or "
            "an update"
        )


@torch.no_grad()
def _restore(tensors: list[Tensor], before: list[Tensor]) -> None:
    for tensor, old in zip(tensors, before, strict=True):
        tensor.copy_(old)
