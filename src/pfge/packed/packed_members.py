"""Members that are stored packed and unpacked one at a time, when asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import torch
from torch import Tensor, nn

from pfge.packed.quantization import Quantized
from pfge.weights import Weights, require_same_layout, view_weights

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
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    base: Stored | None
    each: tuple[Stored, ...]

    @property
    def nbytes(self) -> int:
        """The bytes that are stored."""
        return sum(stored.nbytes for stored in self.each) + (self.base.nbytes if self.base is not None else 0)

    @property
    def is_quantized(self) -> bool:
        """Whether any part of it is."""
        return isinstance(self.base, Quantized) or any(isinstance(part, Quantized) for part in self.each)

    def member(self, index: int) -> Tensor:
        """Return the tensor of one member."""
        if self.base is None:
            values = numbers_of(self.each[index])
        elif not self.each:
            values = numbers_of(self.base)
        else:
            values = numbers_of(self.base).float() + numbers_of(self.each[index])
        return values.to(self.dtype).view(self.shape)


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
        chosen = {name: replace(tensor, each=tensor.each[index]) for name, tensor in self.tensors.items()}
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
        """Return the members with some tensors of each replaced, those that are not quantized.

        Args:
            fresh: For each member, the tensors that have new values.
        """
        replaced = {
            name: pack_as_is([weights[name] for weights in fresh], bits=16 if _is_narrowed(old) else 32)
            for name, old in self.tensors.items()
            if name in fresh[0] and not old.is_quantized
        }
        return PackedMembers(self._length, self.tensors | replaced)


def pack_as_is(tensors: Sequence[Tensor], bits: int) -> PackedTensor:
    """Return one tensor of all members unquantized, once if it is the same in all of them.

    Args:
        tensors: The tensor of each member.
        bits: 32 for the tensors' own type, 16 for float16 where that holds what is in them.
    """
    first = tensors[0]
    if all(torch.equal(first, other) for other in tensors[1:]):
        return PackedTensor(tuple(first.shape), first.dtype, _own(first, first.dtype), ())
    narrow = bits == 16 and all(map(fits_float16, tensors))
    stored = tuple(_own(tensor, torch.float16 if narrow else tensor.dtype) for tensor in tensors)
    return PackedTensor(tuple(first.shape), first.dtype, None, stored)


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
