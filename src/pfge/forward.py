"""How batches meet a model: how it is called, how often they are read, in which mode."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, signature
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from pfge.weights import unwrap

Batch = TypeVar("Batch")


def run_model(model: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], Any] | None = None) -> Any:
    """Return what a model gives for a batch, which is moved to the model's device first.

    Args:
        model: The model.
        batch: Tensors, or lists, tuples and dicts of them, may be on any device.
        forward: Calls the model on the moved batch; `call_model` if None.
    """
    return (forward or call_model)(model, move_batch(batch, _device_of(model)))


def move_batch(batch: Any, device: torch.device | None) -> Any:
    """Return a batch with its tensors on a device; what is no tensor, list, tuple or dict stays as it is."""
    match batch:
        case Tensor() if device is not None and batch.device != device:
            return batch.to(device)
        case Mapping():  # a plain dict: other kinds, as those of transformers, differ in how they are made
            return {key: move_batch(value, device) for key, value in batch.items()}
        case tuple() if hasattr(batch, "_fields"):
            return type(batch)(*(move_batch(value, device) for value in batch))
        case list() | tuple():
            return type(batch)(move_batch(value, device) for value in batch)
    return batch


def _device_of(model: nn.Module) -> torch.device | None:
    tensor = next(chain(model.parameters(), model.buffers()), None)
    return None if tensor is None else tensor.device


def call_model(model: nn.Module, batch: Any) -> Any:
    """Call a model on a tensor, on a dict of keyword arguments, or on the first entry of a pair.

    That entry may also be a tuple or a list of the model's arguments.

    Of outputs by name, as the models of transformers return them, it gives the `logits`.
    """
    arguments, named = arguments_of(batch)
    if named:
        _require_keywords(model, named)
    return pick_logits(model(*arguments, **named))


def arguments_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments by place and by name with which `call_model` calls a model."""
    match batch:
        case Tensor():
            return (batch,), {}
        case Mapping():
            return (), dict(batch)
        case [tuple() | list() as arguments, *_]:
            return tuple(arguments), {}
        case [first, *_]:
            return arguments_of(first)
    raise TypeError(
        f"a batch must be a tensor, a dict of keyword arguments, or a tuple or list that begins with one, "
        f"got {type(batch).__name__}; pass forward=, a function of the model and the batch"
    )


def _require_keywords(model: nn.Module, batch: Mapping[str, Any]) -> None:
    """Refuse a batch by names with one that the model's forward does not take."""
    try:
        parameters = signature(unwrap(model).forward).parameters.values()
    except (TypeError, ValueError):  # a scripted module does not say
        return
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    taken = [parameter.name for parameter in parameters if parameter.kind in by_name]
    if others := [name for name in batch if name not in taken]:
        raise ValueError(
            f"a dict batch must have the names that the model's forward takes, {', '.join(taken)}, got "
            f"{', '.join(map(str, others))} too; pass forward=, for example "
            f"lambda model, batch: model(batch[{next((n for n in batch if n in taken), 'x')!r}])"
        )


def pick_logits(outputs: Any) -> Any:
    """Return the `logits` of outputs by name; other outputs as they are."""
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
    if times > 1:
        _refuse_shuffling(batches, "in the same order for each member")


def require_order_of_rows(batches: Iterable[Any]) -> None:
    """Refuse a loader that shuffles where nothing else would tell which example a prediction is of."""
    _refuse_shuffling(batches, "in a fixed order, as predictions do")


def require_order_of_targets(batches: Iterable[Any]) -> None:
    """Refuse a loader that shuffles where the targets are given beside it."""
    _refuse_shuffling(batches, "in the order of their targets")


def _refuse_shuffling(batches: Iterable[Any], needed: str) -> None:
    if isinstance(batches, DataLoader) and _shuffles(batches):
        raise ValueError(
            f"batches must come {needed}, got a DataLoader that shuffles; construct it with shuffle=False "
            "and without a random sampler"
        )


def _shuffles(loader: DataLoader[Any]) -> bool:
    """Return whether a loader draws its order at random; it takes samplers of examples and of batches."""
    outer = (loader.sampler, loader.batch_sampler)
    inner = (getattr(sampler, "sampler", None) for sampler in outer)
    random = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    return any(isinstance(sampler, random) for sampler in (*outer, *inner))


def targets_of(batch: Any) -> Tensor:
    """Return the targets of a batch: the second entry of a pair, or the `labels` of a dict."""
    match batch:
        case [_, Tensor() as targets, *_] | {"labels": Tensor() as targets}:
            return targets
    raise ValueError(
        f"a batch must be inputs and targets, or a dict with labels, got {type(batch).__name__} without them"
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
