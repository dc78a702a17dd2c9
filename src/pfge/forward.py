"""How batches reach a model: calls, targets, devices, modes, and modules that may be changed."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from inspect import Parameter, signature
from itertools import chain
from types import FunctionType
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from pfge.errors import InvalidTypeError, InvalidValueError
from pfge.weights import unwrap

_DROPPED = "_compiled_call_impl"  # a copy of a module does not have it


class OwnedModel:
    """A factory that returns one model, which its owner has handed over: it may be changed in place."""

    def __init__(self, model: nn.Module):
        self._model = model

    def __call__(self) -> nn.Module:
        """Return the model."""
        return self._model


class ModuleFactory:
    """Calls a user's factory, and changes no module that anything else may use.

    Factories such as `lambda: model` return a model in use, or a new module with parts of one. Two results of
    such a factory share a module or memory, so the first time it is called twice. The model is then copied.
    The first result is dropped before the second call, so there are never two new models in memory.

    Args:
        build_model: Returns a module.
    """

    def __init__(self, build_model: Callable[[], nn.Module]):
        self._build_model = build_model
        self._returns_new: bool | None = None

    def new(self, device: torch.device) -> nn.Module:
        """Return a module on a device, in evaluation mode and without gradients, that nothing else uses."""
        # Tensors made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            before = None
            if self._returns_new is None:
                with torch.random.fork_rng():  # as after a single call
                    before = _Watched(self._build())
            model = self._build()
            if before is not None:
                self._returns_new = not before.alive() & _holdings(model)
            return _prepare(model if self._returns_new else copy_module(model, device), device)

    def _build(self) -> nn.Module:
        model: Any = self._build_model()
        if not isinstance(model, nn.Module):
            raise InvalidTypeError(
                f"build_model must return a module, got {type(model).__name__}; let it return the "
                "model that it constructs"
            )
        return model

    def resident(self, device: torch.device) -> nn.Module:
        """Return a module for members to be put into: a new one, or the one that was handed over."""
        if isinstance(self._build_model, OwnedModel):
            return _prepare(self._build_model(), device)
        return self.new(device)


def copy_module(model: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of a model, without its wrappers and gradients; the model is left as it is.

    Raises:
        ValueError: A function in the model refers to the model, so a copy would use the original's weights.
    """
    module = unwrap(model)
    _require_copyable(module)
    # deepcopy refuses what a layer, such as that of weight_norm, has computed from its weights and kept.
    kept = (value for part in module.modules() for value in vars(part).values())
    memo = {id(value): value.detach() for value in kept if isinstance(value, Tensor) and value.grad_fn}
    for tensor in _tensors_of(module):
        if type(tensor) in (Tensor, nn.Parameter):  # not on the way to the device twice, and without .grad
            copied = tensor.detach().to(device, copy=True)
            is_parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(copied, requires_grad=False) if is_parameter else copied
    return deepcopy(module, memo)


def _prepare(module: nn.Module, device: torch.device) -> nn.Module:
    return module.to(device).eval().requires_grad_(False)


def _tensors_of(module: nn.Module) -> Iterator[Tensor]:
    return chain(module.parameters(), module.buffers())


class _Watched:
    """What a model held, without keeping it alive."""

    def __init__(self, model: nn.Module):
        tensors = list(_tensors_of(model))
        self._objects = [weakref.ref(held) for held in chain(model.modules(), tensors)]
        storages = (t.untyped_storage() for t in tensors if type(t) in (Tensor, nn.Parameter))
        self._memory = [(StorageWeakRef(s), s.data_ptr()) for s in storages]  # type: ignore[no-untyped-call]

    def alive(self) -> set[tuple[str, int]]:
        """Return what is still there, as `_holdings` does."""
        objects = {("object", id(held)) for reference in self._objects if (held := reference()) is not None}
        there = [at for ref, at in self._memory if not ref.expired()]  # type: ignore[no-untyped-call]
        return objects | {("memory", address) for address in there if address}


def _holdings(model: nn.Module) -> set[tuple[str, int]]:
    """Return the identities of a model's modules and tensors, and where its tensors lie in memory."""
    tensors = list(_tensors_of(model))
    plain = (tensor for tensor in tensors if type(tensor) in (Tensor, nn.Parameter))
    addresses = {tensor.untyped_storage().data_ptr() for tensor in plain} - {0}
    objects = {("object", id(held)) for held in chain(model.modules(), tensors)}
    return objects | {("memory", address) for address in addresses}


def _require_copyable(module: nn.Module) -> None:
    own = {id(held) for held in chain(module.modules(), _tensors_of(module))}
    for path, part in module.named_modules():
        hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
        attributes = [(name, value) for name, value in vars(part).items() if name != _DROPPED]
        for name, value in [*attributes, *(("a forward hook", hook) for hook in hooks)]:
            if any(id(getattr(found, "__self__", found)) in own for found in _closed_over(value)):
                raise InvalidValueError(
                    f"a model in use is copied, but {name} of {path or type(part).__name__} is a function "
                    "that refers to the model, so the copy would use its weights; let build_model return a "
                    "new model"
                )


def _closed_over(value: Any) -> Iterator[Any]:
    while isinstance(value, partial):
        value = value.func
    for cell in (value.__closure__ or ()) if isinstance(value, FunctionType) else ():
        with suppress(ValueError):  # an empty one
            yield cell.cell_contents


Batch = TypeVar("Batch")

Forward: TypeAlias = Callable[[nn.Module, Any], Any]
"""Calls a model on a batch."""

TargetsAt: TypeAlias = int | str | Callable[[Any], Tensor] | None
"""Where a batch has its targets: an index, a key, or a function of the batch; None for the usual place."""


def run_model(model: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], Any] | None = None) -> Any:
    """Return what a model gives for a batch, which is moved to the model's device first.

    Args:
        model: The model.
        batch: Tensors, or lists, tuples and dicts of them, may be on any device.
        forward: Calls the model on the moved batch; `call_model` if None.
    """
    return (forward or call_model)(model, move_batch(batch, _device_of(model)))


def move_batch(batch: Any, device: torch.device | None) -> Any:
    """Return a batch with its tensors, also those in lists, tuples and dicts, on a device."""
    match batch:
        case Tensor() if device is not None and batch.device != device:
            return batch.to(device)
        case PackedSequence():  # a named tuple, of which the sizes must stay in main memory
            # The types of torch leave out this overload.
            return batch if device is None else batch.to(device)  # type: ignore[arg-type]
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

    The first entry may also be a tuple or a list of the model's arguments. A `PackedSequence` is one input.

    For outputs by name, as the models of transformers return them, the result is the `logits`.
    """
    arguments, named = arguments_of(batch)
    if named:
        _require_keywords(model, named)
    if len(arguments) > 1:
        _require_places(model, arguments)
    return pick_logits(model(*arguments, **named))


def arguments_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments by place and by name with which `call_model` calls a model.

    Raises:
        ValueError: The batch has three or more entries, which could be inputs or targets.
    """
    match batch:
        case Tensor() | PackedSequence():
            return (batch,), {}
        case Mapping():
            return (), dict(batch)
        case [_, _, _, *_]:
            raise InvalidValueError(
                f"a batch must be inputs, or inputs and targets, got {len(batch)} entries; pass "
                "forward=lambda model, batch: model(batch[0], batch[1]) or the like, or, where it is an "
                "argument, targets=, the index of the targets, to call the model with all other entries"
            )
        case [first, *_] if has_entries(first):
            return tuple(first), {}
        case [first, *_]:
            return arguments_of(first)
    raise InvalidTypeError(
        f"a batch must be a tensor, a dict of keyword arguments, or a tuple or list that begins with one, "
        f"got {type(batch).__name__}; pass forward=, a function of the model and the batch"
    )


def has_entries(value: Any) -> bool:
    """Return whether a value is a tuple or list of others; a `PackedSequence` is one input."""
    return isinstance(value, tuple | list) and not isinstance(value, PackedSequence)


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
        raise InvalidValueError(
            f"a dict batch must have the names that the model's forward takes, {', '.join(taken)}, got "
            f"{', '.join(map(str, others))} too; pass forward=, for example "
            f"lambda model, batch: model(batch[{next((n for n in batch if n in taken), 'x')!r}])"
        )


def _require_places(model: nn.Module, arguments: tuple[Any, ...]) -> None:
    """Refuse more arguments than the model's forward takes, as the batches of a list would be."""
    try:
        signature(unwrap(model).forward).bind(*arguments)
    except ValueError:  # a scripted module does not say
        return
    except TypeError as error:
        raise InvalidTypeError(
            f"a batch that begins with a tuple or list has the model's arguments there, got {len(arguments)} "
            f"that its forward does not take ({error}); pass a list of batches to predict_batches(), or "
            "pass forward=, a function of the model and the batch"
        ) from None


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
            raise InvalidValueError(
                "batches ended before the last iteration; pass a DataLoader, a list or an endless iterator"
            )


def require_rereadable(batches: Iterable[Any], times: int) -> None:
    """Refuse an iterator where batches are read more than once."""
    if times > 1 and isinstance(batches, Iterator):
        raise InvalidValueError(
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


def _refuse_shuffling(batches: Iterable[Any], needed: str) -> None:
    if isinstance(batches, DataLoader) and _shuffles(batches):
        raise InvalidValueError(
            f"batches must come {needed}, got a DataLoader that shuffles; construct it with shuffle=False "
            "and without a random sampler"
        )


def _shuffles(loader: DataLoader[Any]) -> bool:
    """Return whether a loader draws its order at random, by a sampler of examples or of batches."""
    outer = (loader.sampler, loader.batch_sampler)
    inner = (getattr(sampler, "sampler", None) for sampler in outer)
    random = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    return any(isinstance(sampler, random) for sampler in (*outer, *inner))


def targets_of(batch: Any, at: TargetsAt = None) -> Tensor:
    """Return the targets of a batch.

    Args:
        batch: Inputs and targets.
        at: The index of the targets in a tuple or list, their key in a dict, or a function of the batch. If
            None, they are the second entry of a pair, or the `labels` of a dict.

    Raises:
        ValueError: The targets are not a tensor, or a batch of three or more entries needs `at`.

    Example:
        >>> import torch
        >>> from pfge.forward import targets_of
        >>> x, y = torch.zeros(2, 3), torch.tensor([0, 1])
        >>> batches = [((x, y), None), ((x, torch.ones(2), y), 2), ({"x": x, "class": y}, "class")]
        >>> [targets_of(batch, at).tolist() for batch, at in batches]
        [[0, 1], [0, 1], [0, 1]]
    """
    match batch:
        case _ if callable(at):
            found = at(batch)
        case _ if at is not None:
            found = batch[_require_place(batch, at)]
        case {"labels": Tensor() as found}:
            pass
        case [_, _, _, *_] if has_entries(batch):
            raise InvalidValueError(
                f"a batch of {len(batch)} entries does not say which one is the targets; pass targets=, "
                f"their index, such as {len(batch) - 1}, or a function of the batch"
            )
        case [_, Tensor() as found] if has_entries(batch):
            pass
        case _:
            raise InvalidValueError(
                "a batch must be a pair of inputs and a tensor of targets, or a dict with labels, got "
                f"{_describe(batch)}; pass targets=, an index, a key or a function of the batch"
            )
    if not isinstance(found, Tensor):
        raise InvalidValueError(
            f"targets must be a tensor, got {type(found).__name__} at targets={_name_of(at)}"
        )
    return found


def inputs_of(batch: Any, at: TargetsAt = None) -> Any:
    """Return what `call_model` takes of a batch whose targets are at an index or a key: all but these."""
    if at is None or callable(at):
        return batch
    place = _require_place(batch, at)
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key != place}
    others = [entry for number, entry in enumerate(batch) if number != place]
    return others if len(others) == 1 else [others]


def without_targets(forward: Forward, at: TargetsAt) -> Forward:
    """Return a function that calls a model on a batch without its targets.

    A function of the user's own takes the whole batch, so it is returned as it is.
    """
    if forward is not call_model or at is None or callable(at):
        return forward
    return lambda model, batch: call_model(model, inputs_of(batch, at))


def _require_place(batch: Any, at: TargetsAt) -> Any:
    """Return the index, counted from 0, or the key at which a batch has its targets."""
    if isinstance(at, str) and isinstance(batch, Mapping) and at in batch:
        return at
    if type(at) is int and has_entries(batch) and -len(batch) <= at < len(batch):
        return at % len(batch)
    if type(at) not in (int, str):
        raise InvalidValueError(
            f"targets must be an index, a key or a function of the batch, got {type(at).__name__}; put a "
            "tensor of targets into the batches, as in [(inputs, targets)]"
        )
    raise InvalidValueError(
        f"targets={at!r} must be an index into tuples or lists, or a key of dicts, got {_describe(batch)}"
    )


def _describe(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a dict with {', '.join(map(str, batch)) or 'nothing'}"
    if has_entries(batch):
        return (
            f"a {type(batch).__name__} of {', '.join(type(entry).__name__ for entry in batch) or 'nothing'}"
        )
    return f"a {type(batch).__name__}"


def _name_of(at: TargetsAt) -> str:
    return "a function" if callable(at) else repr(at)


@contextmanager
def keep_modes(model: nn.Module) -> Iterator[None]:
    """Let every part of a model be in training or evaluation mode afterwards as it was before."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
