"""A point in weight space: view, copy, load, interpolate, measure.

`Weights` are a dict of tensors by name: parameters and persistent buffers, as in a state dict, with the names
that a model has outside of DDP and torch.compile. A tensor with two names, as tied ones have, appears once.

Example:
    >>> import torch
    >>> from pfge.weights import Weights, view_weights
    >>> weights: Weights = view_weights(torch.nn.Linear(3, 2))
    >>> {name: tuple(tensor.shape) for name, tensor in weights.items()}
    {'weight': (2, 3), 'bias': (2,)}
"""

from collections.abc import Iterator
from math import hypot

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from pfge.frozen import shared_part, without
from pfge.sharding import any_split, keep_parts_only, own_parts, split_like, whole

__all__ = [
    "Weights",
    "copy_weights",
    "distance",
    "interpolate",
    "load_weights",
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

    Tensors that are split among processes (FSDP2) are put together, so that all processes must call this.

    Args:
        weights: What to copy.
        device: Where the copy goes; where each tensor is if None.

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


def keep_weights(weights: Weights, device: torch.device | str | None = "cpu") -> Weights:
    """Return a copy that refers to shared tensors instead of copying them."""
    shared = shared_part(weights)
    copied = copy_weights(without(weights, shared), device)
    return {name: shared[name] if name in shared else copied[name] for name in weights}


def load_weights(model: nn.Module, weights: Weights) -> None:
    """Copy weights into a model in place, after checking that every name and shape fits.

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

    What comes from a file may lie elsewhere or in another order, on which rounding may depend.
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

    Tensors that are split among processes (FSDP2) are put together, so that all processes must call this.

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
        raise ValueError(
            f"{first_name} and {second_name} must have the same tensors: {'; '.join(shown)}{more}; "
            "use weights of the same architecture"
        )


def _norm_of_difference(start: Tensor, end: Tensor) -> float:
    wide = torch.promote_types(start.dtype, torch.float64)
    return float(torch.linalg.vector_norm(whole(end).detach().to(wide) - whole(start).detach().to(wide)))


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
