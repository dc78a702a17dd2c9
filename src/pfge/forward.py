"""How batches meet a model: how it is called, how often they are read, in which mode."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

Batch = TypeVar("Batch")


def call_model(model: nn.Module, batch: Any) -> Any:
    """Call a model on a tensor, on a dict of keyword arguments, or on the first entry of a pair.

    That entry may also be a tuple or a list of the model's arguments.

    Of outputs by name, as the models of transformers return them, it gives the `logits`.
    """
    match batch:
        case Tensor():
            return _pick_logits(model(batch))
        case Mapping():
            return _pick_logits(model(**batch))
        case [tuple() | list() as arguments, *_]:
            return _pick_logits(model(*arguments))
        case [first, *_]:
            return call_model(model, first)
    raise TypeError(
        f"a batch must be a tensor, a dict of keyword arguments, or a tuple or list that begins with one, "
        f"got {type(batch).__name__}; pass forward=, a function of the model and the batch"
    )


def _pick_logits(outputs: Any) -> Any:
    return outputs["logits"] if isinstance(outputs, Mapping) and "logits" in outputs else outputs


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


def require_rereadable(batches: Iterable[Any], times: int) -> None:
    """Refuse an iterator where batches are read more than once."""
    if times > 1 and isinstance(batches, Iterator):
        raise ValueError(
            f"batches are read once for each of {times} members, got an iterator, which is read only once; "
            "pass a list or a DataLoader"
        )


def require_same_order(batches: Iterable[Any], times: int) -> None:
    """Refuse a loader that shuffles where batches are read more than once."""
    if times > 1 and isinstance(batches, DataLoader) and isinstance(batches.sampler, RandomSampler):
        raise ValueError(
            "batches must come in the same order for each member, got a DataLoader that shuffles; "
            "construct it with shuffle=False"
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
