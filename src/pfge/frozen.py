"""Parameters that are not trained: one copy of each, to which all that was collected refers.

A shared tensor never changes, so that many members can hold it. Averages, stores and files ask `is_shared`.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from pfge.sharding import is_split

_shared: Any = WeakIdKeyDictionary()  # tensors by identity, as long as something else holds them


def share(tensor: Tensor) -> Tensor:
    """Mark a tensor as one that never changes, and return it."""
    _shared[tensor] = True
    return tensor


def is_shared(tensor: Tensor) -> bool:
    """Return whether a tensor was marked as one that never changes."""
    return bool(_shared) and tensor in _shared


def shared_part(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return those of the tensors that never change."""
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
        named: The parameters of a model by name. Those that are trained, split among processes or not finite
            are left out.
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
