"""Members that are stored packed and unpacked one at a time, when asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import overload

import torch
from torch import Tensor, nn

from pfge.packed.codes import Quantized, quantize
from pfge.weights import Weights, require_same_layout, view_weights

LARGEST_CHANGE = 0.1
"""Of a positive number that is stored in few bits, relative to it."""
Stored = Tensor | Quantized
"""A tensor's numbers as they are, perhaps in a narrower type, or quantized."""


@dataclass(frozen=True)
class PackedTensor:
    """One tensor of all members: what they share, once, and what each adds to it.

    Args:
        shape: Of the tensor.
        dtype: The model's own type, in which members have it.
        base: What all members share; None if nothing.
        each: What each member adds; empty if all of them are the base.
        mix: If given, [members, components], `each` are components instead, and member k adds the sum over j
            of mix[k, j] times component j.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    base: Stored | None
    each: tuple[Stored, ...]
    mix: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """The bytes that are stored."""
        parts = [*self.each, self.base, self.mix]
        return sum(stored.nbytes for stored in parts if stored is not None)

    @property
    def is_quantized(self) -> bool:
        """Whether any part of it is."""
        return isinstance(self.base, Quantized) or any(isinstance(part, Quantized) for part in self.each)

    def of(self, index: slice) -> "PackedTensor":
        """Return the tensor of some members alone."""
        if self.mix is not None:
            return replace(self, mix=self.mix[index])
        return replace(self, each=self.each[index])

    def member(self, index: int) -> Tensor:
        """Return the tensor of one member."""
        if self.mix is not None:
            values = (
                torch.zeros(prod(self.shape)) if self.base is None else numbers_of(self.base).float().clone()
            )
            for factor, part in zip(self.mix[index].tolist(), self.each, strict=True):
                values.add_(numbers_of(part).float(), alpha=factor)
        elif self.base is None:
            values = numbers_of(self.each[index])
        elif not self.each:
            values = numbers_of(self.base)
        else:
            values = numbers_of(self.base).float() + numbers_of(self.each[index]).float()
        if self.dtype.is_floating_point and self.dtype.itemsize == 1:  # what is too large would become NaN
            largest = torch.finfo(self.dtype).max
            values = values.float().clamp(-largest, largest)
        return values.to(self.dtype).view(self.shape)

    def in_type(self, dtype: torch.dtype) -> "PackedTensor":
        """Return the tensor of another type; numbers that it has exactly are stored in it."""
        base = None if self.base is None else _in_type(self.base, dtype)
        return replace(self, dtype=dtype, base=base, each=tuple(_in_type(part, dtype) for part in self.each))


def _in_type(stored: Stored, dtype: torch.dtype) -> Stored:
    if isinstance(stored, Quantized):
        return stored
    found = stored.to(dtype)
    return found if torch.equal(found.to(stored.dtype), stored) else stored


def numbers_of(stored: Stored) -> Tensor:
    """Return what is stored as one row of numbers."""
    return stored.numbers() if isinstance(stored, Quantized) else stored.reshape(-1)


class PackedMembers(Sequence[Weights]):
    """A sequence of weights of which only the packed form is kept in memory.

    Args:
        length: How many members there are.
        tensors: Every tensor of the members, by name.
    """

    def __init__(self, length: int, tensors: dict[str, PackedTensor]):
        self.tensors = tensors
        self._length = length

    def __len__(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        """The bytes of all packed tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @overload
    def __getitem__(self, index: int) -> Weights: ...
    @overload
    def __getitem__(self, index: slice) -> "PackedMembers": ...
    def __getitem__(self, index: int | slice) -> "Weights | PackedMembers":
        if isinstance(index, int):
            position = range(self._length)[index]
            return {name: tensor.member(position) for name, tensor in self.tensors.items()}
        chosen = {name: tensor.of(index) for name, tensor in self.tensors.items()}
        return PackedMembers(len(range(self._length)[index]), chosen)

    @torch.no_grad()
    def unpack_into(self, model: nn.Module, index: int) -> None:
        """Write one member into a model, tensor by tensor, so that no second model is in memory.

        Raises:
            ValueError: The model and the members differ; the model is left as it was.
        """
        live = view_weights(model)
        self.require_fit(live)
        for name, tensor in live.items():
            tensor.copy_(self.tensors[name].member(index))

    def require_fit(self, live: Weights) -> None:
        """Raise a ValueError unless a model's tensors have the names and shapes of the members'."""
        layout = {name: torch.empty(tensor.shape, device="meta") for name, tensor in self.tensors.items()}
        require_same_layout(live, layout, "the model", "the weights")

    def with_tensors(self, fresh: Sequence[Weights]) -> "PackedMembers":
        """Return the members with small tensors of each replaced; quantized matrices and filters stay.

        Args:
            fresh: For each member, the tensors that have new values.
        """
        replaced = {
            name: _pack_as_before(old, [weights[name] for weights in fresh])
            for name, old in self.tensors.items()
            if name in fresh[0] and not (old.is_quantized and len(old.shape) >= 2)
        }
        return PackedMembers(self._length, self.tensors | replaced)


def pack_as_is(tensors: Sequence[Tensor], bits: int) -> PackedTensor:
    """Return one tensor of all members unquantized, once if it is the same in all of them.

    Args:
        tensors: The tensor of each member; all are stored in the type of the first.
        bits: 32 for that type, 16 for float16 where it holds what is in them.
    """
    first = tensors[0]
    alike = [tensor.to(first.dtype) for tensor in tensors]  # a file holds one type for all members
    if all(torch.equal(first, other) for other in alike[1:]):
        return PackedTensor(tuple(first.shape), first.dtype, _own(first, first.dtype), ())
    narrow = bits == 16 and all(map(fits_float16, alike))
    stored = tuple(_own(tensor, torch.float16 if narrow else first.dtype) for tensor in alike)
    return PackedTensor(tuple(first.shape), first.dtype, None, stored)


def pack_differences(tensors: Sequence[Tensor], bits: int, group: int) -> PackedTensor:
    """Return one tensor of all members as their mean and what each adds to it, in few bits.

    Numbers of which none is negative, as variances, stay so: if one would become negative, or a positive one
    would change by more than a tenth, the tensor is kept in float16 instead.

    Args:
        tensors: The tensor of each member.
        bits: Of what a member adds, from 1 to 8.
        group: How many numbers share a step.
    """
    first = tensors[0]
    if all(torch.equal(first, other) for other in tensors[1:]):
        return pack_as_is(tensors, 32)
    mean = torch.stack([tensor.detach().to("cpu", torch.float32) for tensor in tensors]).mean(dim=0)
    base = _own(mean, torch.float16 if fits_float16(mean) else torch.float32)
    each = (quantize(tensor.to("cpu", torch.float32) - base.float(), bits, group) for tensor in tensors)
    packed = PackedTensor(tuple(first.shape), first.dtype, base, tuple(each))
    if all(bool((tensor >= 0).all()) for tensor in tensors):
        pairs = ((packed.member(k), tensor.cpu()) for k, tensor in enumerate(tensors))
        if any(_is_spoiled(found, expected) for found, expected in pairs):
            return pack_as_is(tensors, 16)
    return packed


def _is_spoiled(found: Tensor, expected: Tensor) -> bool:
    """Return whether numbers that were not negative are so now, or positive ones have changed too much."""
    # A zero, as the variance of a dead channel, has no relative change, and must not hide those of others.
    changes = (found / expected - 1).abs()[expected > 0]
    return bool((found < 0).any() or (changes > LARGEST_CHANGE).any())


def _pack_as_before(old: PackedTensor, tensors: Sequence[Tensor]) -> PackedTensor:
    if old.each and isinstance(part := old.each[0], Quantized):
        return pack_differences(tensors, part.bits, part.group)
    return pack_as_is(tensors, bits=16 if _is_narrowed(old) else 32)


def fits_float16(tensor: Tensor) -> bool:
    """Return whether float16 is narrower and loses no more than its rounding of the largest entry."""
    if not tensor.is_floating_point() or tensor.dtype.itemsize <= 2:
        return False
    if not tensor.numel():
        return True
    # False for what overflows to infinity, and where all entries are so small that they vanish.
    lost = (tensor.half().to(tensor.dtype) - tensor).abs().max()
    return bool(lost <= tensor.abs().max() * 2**-11)


def _own(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().to("cpu", dtype, copy=True).contiguous()


def _is_narrowed(tensor: PackedTensor) -> bool:
    return any(isinstance(part, Tensor) and part.dtype != tensor.dtype for part in tensor.each)
