"""Points in weight space: view, copy, load, interpolate, measure; finite checks and frozen parameters."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import hypot
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.weak import WeakIdKeyDictionary

from pfge.errors import InvalidValueError
from pfge.sharding import any_split, in_any_process, is_split, keep_parts_only, own_parts, split_like, whole

_shared: Any = WeakIdKeyDictionary()  # tensors by identity, as long as something else holds them


def share(tensor: Tensor) -> Tensor:
    """Mark a tensor as one that never changes, and return it."""
    _shared[tensor] = True
    return tensor


def is_shared(tensor: Tensor) -> bool:
    """Return whether a tensor was marked as one that never changes."""
    return bool(_shared) and tensor in _shared


def shared_part(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that never change."""
    if not _shared:  # nothing is frozen in most runs
        return {}
    return {name: tensor for name, tensor in tensors.items() if tensor in _shared}


def without(tensors: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors that do not have one of the names."""
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def has_same_bits(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are equal bit for bit, wherever they are; -0.0 is not 0.0."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return first is second or torch.equal(_bytes_of(first), _bytes_of(second))


def is_finite(tensor: Tensor) -> bool:
    """Return whether a tensor holds neither NaN nor infinity."""
    # Floating-point types of 8 bits have no isfinite.
    comparable = tensor.float() if is_narrow(tensor) else tensor
    return bool(comparable.isfinite().all())


def is_narrow(tensor: Tensor) -> bool:
    """Return whether a tensor is of a floating-point type of 8 bits, which torch cannot add up."""
    return tensor.is_floating_point() and tensor.element_size() == 1


def share_narrow(state: Any) -> None:
    """Mark the tensors of 8 bits in a state as shared again: of these, only frozen ones are collected."""
    match state:
        case Tensor() if is_narrow(state):
            share(state)
        case dict():
            share_narrow(list(state.values()))
        case list():
            for part in state:
                share_narrow(part)


def share_equal(members: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Return members in which a tensor that is the same in all of them is held once."""
    if len(members) < 2:
        return members
    first, *others = members
    equal = {n: share(t) for n, t in first.items() if all(has_same_bits(t, other[n]) for other in others)}
    return [{name: equal.get(name, tensor) for name, tensor in member.items()} for member in members]


class FrozenParameters:
    """Shared copies of the parameters that do not require gradients, for as long as they do not change.

    Args:
        named: The parameters of a model by name. Trained, split and non-finite parameters are left out.
    """

    def __init__(self, named: Iterable[tuple[str, Tensor]]):
        frozen = [
            (name, parameter)
            for name, parameter in named
            if not parameter.requires_grad and not is_split(parameter) and is_finite(parameter)
        ]
        self._copies = {name: share(_copy_to_cpu(parameter)) for name, parameter in frozen}
        self._seen: dict[str, tuple[int, ...]] = {}
        self._looks = 0

    def copies(self, named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Return the copies of the parameters that are still frozen; others are forgotten for good."""
        if not self._copies:
            return {}
        self._looks += 1
        parameters = dict(named)
        for name in list(self._copies):
            if not self._is_unchanged(name, parameters.get(name)):
                del self._copies[name]
        return dict(self._copies)

    def _is_unchanged(self, name: str, parameter: Tensor | None) -> bool:
        if parameter is None or parameter.requires_grad:
            return False
        # In-place operations count the version up. Those on .data do not, so looks 1 to 4, 8, 16, ... are at
        # the bits: something else than the optimizer may move a parameter, such as that of a teacher.
        state = (id(parameter), parameter._version, parameter.data_ptr())
        if self._seen.get(name) == state and self._looks > 4 and self._looks & (self._looks - 1):
            return True
        self._seen[name] = state
        return has_same_bits(parameter, self._copies[name])


def _copy_to_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


__all__ = [
    "Weights",
    "copy_weights",
    "distance",
    "interpolate",
    "load_weights",
    "state_dict_for",
    "trained_names",
    "view_weights",
]

Weights = dict[str, Tensor]
"""Parameters and persistent buffers, by canonical name; a tensor with two names appears once."""

_COMPILED = "_orig_mod"  # where torch.compile keeps the module it wraps


def unwrap(model: nn.Module) -> nn.Module:
    """Return the user's own module from inside DDP, DataParallel and torch.compile."""
    while True:
        if isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        elif _COMPILED in model._modules:
            model = model.get_submodule(_COMPILED)
        else:
            return model


def view_weights(model: nn.Module) -> Weights:
    """Return the live tensors of a model: writing to them changes the model.

    Args:
        model: DDP, DataParallel and torch.compile wrappers are looked through.

    Example:
        >>> import torch
        >>> from pfge.weights import view_weights
        >>> model = torch.nn.Linear(1, 2, bias=False)
        >>> _ = view_weights(model)["weight"].fill_(3.0)
        >>> model.weight.tolist()
        [[3.0], [3.0]]
    """
    keep_parts_only(model)
    return {name: tensor.detach() for name, tensor, _ in named_tensors(model)}


def buffer_names(model: nn.Module) -> frozenset[str]:
    """Return the canonical names of a model's persistent buffers."""
    return frozenset(name for name, _, is_buffer in named_tensors(model) if is_buffer)


def trained_names(model: nn.Module) -> frozenset[str]:
    """Return the canonical names of the floating-point parameters that require gradients.

    Args:
        model: DDP, DataParallel and torch.compile wrappers are looked through.

    Example:
        >>> import torch
        >>> from pfge.weights import trained_names
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        >>> _ = model[1].requires_grad_(False)
        >>> sorted(trained_names(model))
        ['0.bias', '0.weight']
    """
    named = unwrap(model).named_parameters()
    return frozenset(canonical_name(name) for name, p in named if p.requires_grad and is_averaged(p))


def copy_weights(weights: Weights, device: torch.device | str | None = None) -> Weights:
    """Return an independent copy.

    Tensors that are split among processes (FSDP2) are put together, so all processes must call this.

    Args:
        weights: Weights to copy.
        device: Device of the copy; None leaves each tensor on its own.

    Example:
        >>> import torch
        >>> from pfge.weights import copy_weights, view_weights
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> _ = torch.nn.init.ones_(model.weight)
        >>> kept = copy_weights(view_weights(model))
        >>> _ = torch.nn.init.zeros_(model.weight)
        >>> kept["weight"].tolist()
        [[1.0]]
    """
    # contiguous_format: members are written to disk as they are, and a file has one layout.
    kept = None if device is None else torch.device(device)
    if any_split(weights):  # put together one at a time: not all may fit on the device
        return {
            name: whole(tensor).detach().to(kept or tensor.device, copy=True).contiguous()
            for name, tensor in weights.items()
        }
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        if kept is None or tensor.device == kept
        else tensor.detach().to(kept, copy=True).contiguous()
        for name, tensor in weights.items()
    }


def to_cpu(weights: Weights) -> Weights:
    """Return a copy in main memory that refers to shared tensors instead of copying them."""
    shared = shared_part(weights)
    copied = copy_weights(without(weights, shared), "cpu")
    return {name: shared[name] if name in shared else copied[name] for name in weights}


def load_weights(model: nn.Module, weights: Weights) -> None:
    """Copy weights into a model in place, after checking that every name and shape fits.

    Unlike `load_state_dict`, it takes tied weights, which appear once; see `state_dict_for`.

    Args:
        model: DDP, DataParallel and torch.compile wrappers are looked through.
        weights: For example one member of a collector.

    Raises:
        ValueError: The model and the weights differ; the model is left as it was.

    Example:
        The mean of a `SWA` or `EMA` collector as a model of its own:

        >>> import torch, pfge
        >>> collector = pfge.SWA(cycle=1)
        >>> collector.begin({"weight": torch.zeros(1, 2)})
        >>> collector.observe(1, {"weight": torch.ones(1, 2)})
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> pfge.load_weights(model, collector.members()[0])
        >>> model.weight.tolist()
        [[0.5, 0.5]]
    """
    copy_into(view_weights(model), weights)


def state_dict_for(model: nn.Module, weights: Weights) -> dict[str, Any]:
    """Return weights as a state dict of a model, for its own `load_state_dict`, or for `save_pretrained`.

    Weights have a tied tensor once, and a state dict has it by each of its names. The tensors are not copied.

    Args:
        model: DDP, DataParallel and torch.compile wrappers are looked through.
        weights: For example one member of a collector.

    Raises:
        ValueError: The model and the weights differ.

    Example:
        >>> import torch
        >>> from pfge.weights import state_dict_for, view_weights
        >>> tied = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
        >>> tied[1].weight = tied[0].weight
        >>> member = {"0.weight": torch.eye(2)}
        >>> list(state_dict_for(tied, member))
        ['0.weight', '1.weight']
        >>> tied.load_state_dict(state_dict_for(tied, member))
        <All keys matched successfully>
    """
    require_same_layout(view_weights(model), weights, "the model", "the weights")
    module = unwrap(model)
    names = {id(tensor): name for name, tensor, _ in named_tensors(module)}
    state = module.state_dict(keep_vars=True)
    return {key: weights[names[id(v)]] if id(v) in names else v for key, v in state.items()}


@torch.no_grad()
def copy_into(live: Weights, weights: Weights) -> None:
    """Copy weights into a model's live tensors, after checking that every name and shape fits."""
    require_same_layout(live, weights, "the model", "the weights")
    if any_split(live):
        weights = own_parts({name: split_like(tensor, weights[name]) for name, tensor in live.items()})
        live = own_parts(live)
    copy_each(list(live.values()), [weights[name] for name in live])
    torch.clear_autocast_cache()  # it has casts of the weights before, and does not see the change


def copy_each(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors into others, one into each."""
    if targets and all(type(target) is Tensor for target in targets):
        torch._foreach_copy_(targets, sources)
    else:  # subclasses of tensors may have no such function
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)


def accumulator(weights: Weights) -> Weights:
    """Return a copy to average into: floating-point tensors in float32 at least."""
    return {
        name: tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
        if is_averaged(tensor)
        else tensor.detach().clone()
        for name, tensor in weights.items()
    }


def in_memory_order_of(like: Tensor, tensor: Tensor) -> Tensor:
    """Return the tensor on the device and with the strides of another; itself if it is so already.

    Tensors from a file may differ in both, and rounding may depend on the order.
    """
    tensor = split_like(like, tensor)
    if tensor.device == like.device and tensor.stride() == like.stride():
        return tensor
    return torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def interpolate(start: Weights, end: Weights, t: float) -> Weights:
    """Return the point at t on the straight line: start at 0 and end at 1, both bit for bit.

        point = (1 - t) * start + t * end

    Tensors that cannot be averaged are those of the nearer end.

    Args:
        start: The weights at t = 0.
        end: The weights at t = 1.
        t: Any number; outside of 0 to 1 the line goes on beyond the ends.

    References:
        Goodfellow, Vinyals, Saxe, "Qualitatively Characterizing Neural Network Optimization Problems",
        ICLR 2015.

    Example:
        >>> import torch
        >>> from pfge.weights import interpolate
        >>> interpolate({"w": torch.tensor(0.0)}, {"w": torch.tensor(8.0)}, t=0.25)
        {'w': tensor(2.)}
    """
    require_same_layout(start, end, "the start", "the end")
    if t in (0, 1):  # a rounding dtype would lose the exact end
        return copy_weights(end if t else start)
    point = accumulator(start)
    for name, tensor in end.items():
        if is_averaged(tensor):
            point[name] = torch.lerp(point[name], tensor.to(point[name]), t).to(tensor.dtype)
        elif t > 0.5:
            point[name] = tensor.detach().clone()
    return point


def distance(start: Weights, end: Weights) -> float:
    """Return the Euclidean distance over all floating-point tensors, summed in float64.

    The points may be on different devices; they are then compared in main memory.

    Tensors that are split among processes (FSDP2) are put together, so all processes must call this.

    Args:
        start: One point.
        end: The other.

    Example:
        >>> import torch
        >>> from pfge.weights import distance
        >>> origin = {"w": torch.zeros(1), "b": torch.zeros(1)}
        >>> distance(origin, {"w": torch.tensor([3.0]), "b": torch.tensor([4.0])})
        5.0
    """
    require_same_layout(start, end, "the start", "the end")
    parts = [_norm_of_difference(tensor, end[name]) for name, tensor in start.items() if is_averaged(tensor)]
    return hypot(*parts)


def count_bytes(weights: Weights) -> int:
    """Return the bytes that the tensors occupy."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


def describe_weights(weights: Weights) -> str:
    """Return a few words in place of the numbers, for the `repr` of what holds weights."""
    count = sum(tensor.numel() for tensor in weights.values())
    return f"<weights of {count:,} number{'' if count == 1 else 's'}>"


def is_averaged(tensor: Tensor) -> bool:
    """Return whether a mean of such tensors is one of them: true of floating-point and complex ones."""
    return tensor.is_floating_point() or tensor.is_complex()


def require_same_layout(first: Weights, second: Weights, first_name: str, second_name: str) -> None:
    """Raise a ValueError that lists the names and shapes in which two points differ."""
    missing = [f"only {first_name} has {name}" for name in first.keys() - second.keys()]
    unexpected = [f"only {second_name} has {name}" for name in second.keys() - first.keys()]
    of_other_shape = [
        f"{name} is {list(tensor.shape)} in {first_name} and {list(second[name].shape)} in {second_name}"
        for name, tensor in first.items()
        if name in second and tensor.shape != second[name].shape
    ]
    kinds = (missing, unexpected, of_other_shape)
    if any(kinds):
        shown = [problem for kind in kinds for problem in sorted(kind)[:3]]
        left = sum(map(len, kinds)) - len(shown)
        more = f"; and {left} more" if left else ""
        raise InvalidValueError(
            f"{first_name} and {second_name} must have the same tensors: {'; '.join(shown)}{more}; "
            "use weights of the same architecture"
        )


def _norm_of_difference(start: Tensor, end: Tensor) -> float:
    start, end = whole(start).detach(), whole(end).detach()
    if start.device != end.device:
        start, end = start.cpu(), end.cpu()
    # Floating-point types of 8 bits are not promoted.
    wide = torch.float64 if is_narrow(start) else torch.promote_types(start.dtype, torch.float64)
    return float(torch.linalg.vector_norm(end.to(wide) - start.to(wide)))


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield the name, the tensor and whether it is a buffer: what a state dict holds, each tensor once.

    One walk over the modules, as it is made at every collection.
    """
    seen: set[int] = set()
    for path, module in unwrap(model).named_modules():
        prefix = canonical_name(f"{path}.") if path else ""
        for is_buffer, tensors in ((False, module._parameters), (True, module._buffers)):
            for name, tensor in tensors.items():
                if tensor is None or id(tensor) in seen or name in module._non_persistent_buffers_set:
                    continue
                seen.add(id(tensor))
                yield prefix + name, tensor, is_buffer


def canonical_name(name: str) -> str:
    """Return a tensor's name without the parts that torch.compile adds."""
    if _COMPILED not in name:
        return name
    return ".".join(part for part in name.split(".") if part != _COMPILED)


_SHORT = 8192  # the most entries of a tensor that is copied to be summed with others


def find_non_finite(weights: Weights) -> str | None:
    """Return the name of the first tensor that holds NaN or infinity, or None."""
    return FiniteCheck(weights).find()


def require_wide(weights: Weights) -> None:
    """Refuse floating-point tensors of 8 bits, which cannot be added up, unless they are shared."""
    for name, tensor in without(weights, shared_part(weights)).items():
        if is_narrow(tensor):
            raise InvalidValueError(
                f"floating-point tensors of 8 bits cannot be averaged, got {name}, which is {tensor.dtype}; "
                "make it a parameter that is frozen and finite, or a buffer with persistent=False"
            )


class FiniteCheck:
    """A check of the same tensors, as often as their values change.

    Args:
        weights: The tensors. Those that are split among processes are put into their parts at each check, so
            that all processes must make it.
    """

    def __init__(self, weights: Weights):
        self._weights = without(weights, shared) if (shared := shared_part(weights)) else weights
        self._split = any_split(weights)
        self._long: list[Tensor] = []
        self._short: defaultdict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
        if self._split:
            return
        for tensor in self._weights.values():
            if not is_averaged(tensor):
                continue
            if tensor.numel() <= _SHORT and type(tensor) is Tensor and tensor.is_contiguous():
                self._short[tensor.dtype, tensor.device].append(tensor.detach().view(-1))
            else:
                self._long.append(tensor)

    @torch.no_grad()
    def find(self) -> str | None:
        """Return the name of the first tensor that holds NaN or infinity now, or None."""
        if self._split:  # all processes must come to the same answer, or some would wait for the others
            name = find_non_finite(own_parts(self._weights))
            found = in_any_process(name is not None, self._weights)
            return name or ("another process's part of the weights" if found else None)
        # One NaN or infinity makes a sum NaN or infinite, so finite sums settle it, without a temporary copy
        # of large tensors and with one wait for the device. A sum may also overflow: then each entry is
        # looked at.
        sums = [tensor.sum() for tensor in self._long]
        for (dtype, _), tensors in self._short.items():  # many, as those of BatchNorm: one sum is faster
            sums.append(torch.cat(tensors).sum(dtype=torch.promote_types(dtype, torch.float32)))
        if not sums:
            return None
        device = sums[0].device
        if torch.stack([s if s.device == device else s.to(device) for s in sums]).isfinite().all():
            return None
        averaged = ((name, tensor) for name, tensor in self._weights.items() if is_averaged(tensor))
        return next((name for name, tensor in averaged if not tensor.isfinite().all()), None)
