"""What is trained of a packed tensor of one member: steps, factors of components, or small numbers."""

from abc import ABC, abstractmethod
from math import sqrt

import torch
from torch import Tensor

from pfge.packed import PackedTensor, Quantized
from pfge.packed.components import MIX_TYPE
from pfge.packed.packed_members import numbers_of
from pfge.packed.quantization import STEP_TYPE, centered_codes, spread_steps


class TrainablePart(ABC):
    """A tensor of one member as a function of free numbers, which begin at 0.

    Args:
        live: Its name in the model.
        like: The model's own tensor.
        count: How many free numbers it has.
    """

    def __init__(self, live: str, like: Tensor, count: int):
        self.live = live
        self._like = like
        self.free = torch.zeros(count, device=like.device, requires_grad=True)

    def weight(self) -> Tensor:
        """Return the tensor as the model has it."""
        return _as(self._like, self._numbers())

    @abstractmethod
    def _numbers(self) -> Tensor:
        """Return the numbers of the tensor in a row."""

    @abstractmethod
    def found(self) -> Tensor:
        """Return what is to be stored."""


class _Steps(TrainablePart):
    """A quantized tensor: each step is its old one times 1 plus a free number."""

    def __init__(self, live: str, like: Tensor, tensor: PackedTensor, number: int):
        each = tensor.each[number]
        if not isinstance(each, Quantized):
            raise TypeError(f"steps are those of quantized numbers, got {type(each).__name__}")
        super().__init__(live, like, len(each.steps))
        self._each = each
        self._old = each.steps.to(like.device, torch.float32)
        self._codes = centered_codes(each).to(like.device)
        self._base = None if tensor.base is None else numbers_of(tensor.base).float().to(like.device)

    def _steps(self) -> Tensor:
        return self._old * (1 + self.free)

    def _numbers(self) -> Tensor:
        delta = self._codes * spread_steps(self._steps(), self._each.group, self._each.count)
        return delta if self._base is None else self._base + delta

    def found(self) -> Tensor:
        return self._steps().detach().cpu().to(STEP_TYPE)


class _Factors(TrainablePart):
    """A tensor of components: each factor of the member's mix is its old one plus a free number."""

    def __init__(self, live: str, like: Tensor, tensor: PackedTensor, number: int):
        super().__init__(live, like, len(tensor.each))
        self._old = _mix_of(tensor)[number].to(like.device, torch.float32)
        self._components = torch.stack([numbers_of(part) for part in tensor.each]).to(like.device)
        base = torch.zeros(()) if tensor.base is None else numbers_of(tensor.base).float()
        self._base = base.to(like.device)
        self._unit = 1 / sqrt(len(_mix_of(tensor)))  # their usual size: a column's squares add up to 1

    def _factors(self) -> Tensor:
        return self._old + self._unit * self.free

    def _numbers(self) -> Tensor:
        return self._base + self._factors() @ self._components

    def found(self) -> Tensor:
        return self._factors().detach().cpu().to(MIX_TYPE)


def _mix_of(tensor: PackedTensor) -> Tensor:
    if tensor.mix is None:
        raise TypeError("the tensor has no components")
    return tensor.mix


class _Numbers(TrainablePart):
    """A small tensor: each number is its old one plus a free number in units of their usual size."""

    def __init__(self, live: str, like: Tensor, tensor: PackedTensor, number: int):
        self._old = tensor.member(number).to(like.device, torch.float32).reshape(-1)
        super().__init__(live, like, len(self._old))
        self._type = tensor.dtype
        self._unit = self._old.square().mean().sqrt() if len(self._old) else torch.tensor(0.0)

    def _numbers(self) -> Tensor:
        return self._old + self._unit * self.free

    def found(self) -> Tensor:
        return self._numbers().detach().cpu().to(self._type).view(self._like.shape)


def _as(like: Tensor, numbers: Tensor) -> Tensor:
    """Return numbers in a row with the shape, type and memory format of a model's own tensor."""
    tensor = numbers.to(like.dtype).view(like.shape)
    channels_last = like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last)
    return tensor.contiguous(memory_format=torch.channels_last) if channels_last else tensor


def is_stepped(tensor: PackedTensor) -> bool:
    """Return whether what members add to a tensor is a quantized matrix or filter."""
    return tensor.mix is None and len(tensor.shape) >= 2 and isinstance(tensor.each[0], Quantized)


def part_of(tensor: PackedTensor, number: int, live: str, like: Tensor) -> TrainablePart:
    """Return what is trained of one member's tensor.

    Args:
        tensor: As it is packed.
        number: Of the member, from 0.
        live: The name of the tensor in the model.
        like: The model's own tensor.
    """
    kind = _Factors if tensor.mix is not None else _Steps if is_stepped(tensor) else _Numbers
    return kind(live, like, tensor, number)
