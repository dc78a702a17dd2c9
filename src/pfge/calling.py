"""How a batch meets a model: how it is called, for how long, in which mode."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn

Batch = TypeVar("Batch")


def call_model(model: nn.Module, batch: Any) -> Any:
    """Call a model on a tensor, on a dict of keyword arguments, or on the first entry of a pair."""
    match batch:
        case Tensor():
            return model(batch)
        case dict():
            return model(**batch)
        case [first, *_]:
            return call_model(model, first)
    raise TypeError(
        f"a batch must be a tensor, a dict of keyword arguments, or a tuple or list that begins with one, "
        f"got {type(batch).__name__}; pass forward=, a function of the model and the batch"
    )


def repeat_batches(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches without end, reading them again from their start as often as needed."""
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError(
                "batches ended before the last iteration; pass a DataLoader, a list or an endless iterator"
            )


@contextmanager
def keep_modes(model: nn.Module) -> Iterator[None]:
    """Let every part of a model be in training or evaluation mode afterwards as it was before."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
