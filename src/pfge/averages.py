"""Averages of weights, in place: one copy of the weights is all that averaging needs."""

from collections.abc import Collection
from operator import is_
from weakref import ref

import torch
from torch import Tensor

from pfge.sharding import any_split, own_part
from pfge.weights import (
    Weights,
    accumulator,
    copy_each,
    in_memory_order_of,
    is_averaged,
    shared_part,
    without,
)

__all__ = ["Move", "average_into"]


def average_into(mean: Weights, new: Weights, count: int, copied: Collection[str] = ()) -> None:
    """Fold new weights into the mean of `count` others, in place.

        mean = mean + (new - mean) / (count + 1)

    Integer and boolean tensors, and tensors named in `copied`, take the new value.

    Args:
        mean: The mean so far, as made by `accumulator`.
        new: The weights that join it.
        count: Number of weights in the mean so far; 0 replaces it.
        copied: Names of tensors that take the new value, because their mean would be meaningless.

    Example:
        >>> import torch
        >>> from pfge.averages import average_into
        >>> mean = {"w": torch.tensor(2.0), "steps": torch.tensor(20)}
        >>> average_into(mean, {"w": torch.tensor(5.0), "steps": torch.tensor(30)}, count=2)
        >>> mean
        {'w': tensor(3.), 'steps': tensor(30)}
    """
    Move(mean, new, copied).make(1 / (count + 1))


class Move:
    """Steps of one point of weight space towards another, whose values change between two steps.

    The pairs of tensors are sorted once by what happens to them; `average_into` explains which are copied. A
    move holds no reference to the new weights, so the caller must keep them.

    Args:
        mean: The point that moves, as made by `accumulator`; the dict takes other tensors where the layout in
            memory must be that of `new`.
        new: The point that it moves towards.
        copied: Names of tensors that take the new value, because their mean would be meaningless.

    Example:
        >>> import torch
        >>> from pfge.averages import Move
        >>> mean, new = {"w": torch.tensor(0.0)}, {"w": torch.tensor(8.0)}
        >>> move = Move(mean, new)
        >>> move.make(0.5)
        >>> move.make(0.5)
        >>> mean
        {'w': tensor(6.)}
    """

    @torch.no_grad()
    def __init__(self, mean: Weights, new: Weights, copied: Collection[str] = ()):
        self._towards = list(map(ref, new.values()))
        self._split = any_split(new)
        self._converted: list[tuple[Tensor, ref[Tensor]]] = []
        self._lerped, self._latest = _Groups(), _Groups()
        if shared := shared_part(new):  # the mean of what never changes is itself
            mean |= shared
            new = without(new, shared)
        if unfrozen := {name: tensor for name, tensor in shared_part(mean).items() if name in new}:
            mean |= accumulator(unfrozen)
        for name, tensor in new.items():
            kept = mean[name]
            if self._split or kept.stride() != tensor.stride() or kept.device != tensor.device:
                mean[name] = kept = in_memory_order_of(tensor, kept)
            if self._split:  # not before: the dict keeps tensors that are split, and all that it takes
                kept, tensor = own_part(kept), own_part(tensor)
            averaged = is_averaged(tensor) and name not in copied
            if averaged and tensor.dtype != kept.dtype:
                self._converted.append((kept, ref(tensor)))
                continue
            group = (self._lerped if averaged else self._latest)[tensor.dtype, tensor.device]
            group[0].append(kept)
            group[1].append(ref(tensor))

    def leads_to(self, new: Weights) -> bool:
        """Return whether the move was made for these very tensors, so it can be repeated."""
        if self._split or len(new) != len(self._towards):  # the parts of split tensors are other objects
            return False
        return all(map(is_, new.values(), (tensor() for tensor in self._towards)))

    @torch.no_grad()
    def make(self, fraction: float) -> None:
        """Go a fraction of the way to where the other point is now."""
        for kept, tensor in self._converted:
            # One at a time: together, wider copies would take the memory of another mean.
            kept.lerp_(_held(tensor).to(kept.dtype), fraction)
        for means, tensors in self._lerped.values():
            torch._foreach_lerp_(means, list(map(_held, tensors)), fraction)
        for means, tensors in self._latest.values():
            copy_each(means, list(map(_held, tensors)))


def _held(tensor: ref[Tensor]) -> Tensor:
    held = tensor()
    if held is None:
        raise RuntimeError(
            "the weights that a move leads to were freed; keep a reference to them as long as it is used"
        )
    return held


class _Groups(dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[ref[Tensor]]]]):
    """Pairs of tensors by type and device, as torch's fast foreach functions need them."""

    def __missing__(self, key: tuple[torch.dtype, torch.device]) -> tuple[list[Tensor], list[ref[Tensor]]]:
        self[key] = ([], [])
        return self[key]
