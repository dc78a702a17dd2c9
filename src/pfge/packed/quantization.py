"""Numbers as multiples of a step: a few bits for each, and one step for each group."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pfge.packed.bits import pack, packed_size, unpack

# The range of float32, so that no step of small or large weights is lost; its rounding is made good by
# choosing the codes afterwards.
STEP_TYPE = torch.bfloat16

_SHARES = (1.0, 0.85, 0.7, 0.55, 0.4)  # of a group's largest number; what lies beyond is clipped
_REFINEMENTS = 3


@dataclass(frozen=True)
class Quantized:
    """Numbers in a row; number i is (code i - (2**bits - 1) / 2) times the step of its group.

    There are as many levels below zero as above it and none at zero, so that no code is wasted: with
    one bit a number is plus or minus half a step.
    """

    codes: Tensor
    steps: Tensor
    bits: int
    group: int
    count: int

    @property
    def nbytes(self) -> int:
        """The bytes of the codes and the steps."""
        return self.codes.nbytes + self.steps.nbytes

    def numbers(self) -> Tensor:
        """Return the numbers in float32."""
        numbers = centered_codes(self)
        steps = self.steps.float()
        whole = self.count // self.group
        numbers[: whole * self.group].view(whole, self.group).mul_(steps[:whole, None])
        if whole < len(steps):
            numbers[whole * self.group :].mul_(steps[whole:])
        return numbers


def centered_codes(quantized: Quantized) -> Tensor:
    """Return the numbers in units of their steps: odd multiples of one half, in float32."""
    codes = unpack(quantized.codes, quantized.bits, quantized.count)
    return codes.float().sub_(_middle(quantized.bits))


def spread_steps(steps: Tensor, group: int, count: int) -> Tensor:
    """Return the step of each number, from those of groups."""
    return steps.view(-1, 1).expand(-1, group).reshape(-1)[:count]


def quantized_size(count: int, bits: int, group: int) -> int:
    """Return the bytes that `quantize` takes for so many numbers."""
    return packed_size(count, bits) + count_groups(count, group) * STEP_TYPE.itemsize


def count_groups(count: int, group: int) -> int:
    """Return the number of groups, of which the last may be shorter."""
    return -(-count // group)


@torch.no_grad()
def quantize(tensor: Tensor, bits: int, group: int) -> Quantized:
    """Return a tensor's numbers, flattened, in a few bits each with nearly the least squared error.

    With one bit the error is the least there is: half a step is the mean absolute value of the group.

    Args:
        tensor: Finite numbers.
        bits: From 1 to 8 for each number.
        group: How many neighbors share a step.
    """
    if group < 1:
        raise ValueError(f"a group must have at least 1 number, got {group}")
    flat = tensor.detach().reshape(-1).float()
    groups = count_groups(flat.numel(), group)
    rows = flat.new_zeros(groups * group)
    rows[: flat.numel()] = flat
    rows = rows.view(groups, group)
    counted = (torch.arange(groups * group, device=flat.device) < flat.numel()).view(groups, group)
    steps = _find_steps(rows, counted, bits)
    codes = _levels(rows, steps.float(), bits).add_(_middle(bits)).to(torch.uint8)
    return Quantized(pack(codes.view(-1)[: flat.numel()], bits), steps[:, 0], bits, group, flat.numel())


def _find_steps(rows: Tensor, counted: Tensor, bits: int) -> Tensor:
    """Return the best of a few steps for each row, each refined by alternating least squares."""
    largest = rows.abs().amax(dim=1, keepdim=True) if rows.numel() else rows.sum(dim=1, keepdim=True)
    # Squares of shares of the largest number cannot overflow, whatever the numbers.
    unit = torch.where(largest > 0, largest, 1)
    shares = rows / unit
    best = torch.zeros_like(unit, dtype=STEP_TYPE)
    least = torch.full_like(unit, torch.inf)
    for share in _SHARES if bits > 1 else _SHARES[:1]:
        steps = torch.full_like(unit, share / 2 ** (bits - 1))
        for _ in range(_REFINEMENTS if bits > 1 else 1):
            levels = _levels(shares, steps, bits) * counted
            steps = (shares * levels).sum(dim=1, keepdim=True) / levels.square().sum(dim=1, keepdim=True)
        rounded = (steps * unit).clamp(max=torch.finfo(STEP_TYPE).max).to(STEP_TYPE)
        steps = rounded.float() / unit
        left = (shares - _levels(shares, steps, bits) * steps) * counted
        error = left.square().sum(dim=1, keepdim=True)
        best = torch.where(error < least, rounded, best)
        least = torch.minimum(error, least)
    return best


def _levels(rows: Tensor, steps: Tensor, bits: int) -> Tensor:
    """Return the nearest level of each number, in steps: an odd multiple of one half."""
    outermost = _middle(bits)
    return (rows / torch.where(steps > 0, steps, 1)).floor().add_(0.5).clamp_(-outermost, outermost)


def _middle(bits: int) -> float:
    return ((1 << bits) - 1) / 2
