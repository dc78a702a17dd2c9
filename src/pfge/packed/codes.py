"""Codes of 1 to 8 bits: quantization, packing into bytes, and Huffman coding."""

import sys
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from pfge.errors import InvalidValueError
from pfge.storage.files import raw_bytes


def packed_size(count: int, bits: int) -> int:
    """Return the bytes that `count` numbers of `bits` bits take."""
    return bits * -(-count // 8)


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Return numbers from 0 to 2**bits - 1, of any shape, as a flat tensor of bytes.

    The lowest bits of all numbers come first, then the second lowest, and so on; bit j of byte i of
    such a plane is number 8 i + j. Bytes of 8-bit numbers are the numbers themselves, padded with zeros
    to a multiple of 8, as every width is.
    """
    _require_bits(bits)
    flat = numbers.reshape(-1)
    if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < 2**bits:
        raise InvalidValueError(
            f"{bits}-bit numbers must be from 0 to {2**bits - 1}, got {int(flat.min())} to {int(flat.max())}"
        )
    padded = torch.zeros(packed_size(flat.numel(), 8), dtype=torch.uint8, device=flat.device)
    padded[: flat.numel()] = flat
    if bits == 8:
        return padded
    eights = padded.view(-1, 8)
    places = _places(eights)
    planes = [(((eights >> plane) & 1) << places).sum(dim=1, dtype=torch.uint8) for plane in range(bits)]
    return torch.cat(planes)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the first `count` packed numbers."""
    _require_bits(bits)
    if len(packed) != packed_size(count, bits):
        raise InvalidValueError(
            f"{count} numbers of {bits} bits must have {packed_size(count, bits)} bytes, got {len(packed)}"
        )
    if bits == 8:
        return packed[:count]
    # An int64 holds eight numbers, a byte each, so one operation works on eight of them.
    # Planes have no bit in common, so their sum combines them.
    planes = packed.long().view(bits, -1).add_(_FIRST_OF_PLANE[:bits].to(packed.device))
    eights = _EIGHTS.to(packed.device).index_select(0, planes.view(-1)).view(bits, -1).sum(dim=0)
    return eights.view(torch.uint8)[:count]


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)


_BITS = (torch.arange(256, dtype=torch.uint8)[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
_EIGHTS = torch.cat([(_BITS << plane).view(torch.int64)[:, 0] for plane in range(8)])
"""For each plane and each byte of it, its bits in order, each in a byte of its own, at the plane's place."""
_FIRST_OF_PLANE = 256 * torch.arange(8)[:, None]


def _require_bits(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise InvalidValueError(f"bits must be from 1 to 8, got {bits}")


# It has the range of float32, so no step of small or large weights is lost. Codes are chosen after steps are
# rounded, and so compensate for the rounding.
STEP_TYPE = torch.bfloat16

_SHARES = (1.0, 0.85, 0.7, 0.55, 0.4)  # of a group's largest number; larger numbers are clipped
_REFINEMENTS = 3


@dataclass(frozen=True)
class Quantized:
    """Quantized numbers: number i is (code i - (2**bits - 1) / 2) times the step of its group.

    As many levels lie below zero as above it, and none at zero. So no code is wasted: with one bit, a number
    is plus or minus half a step.
    """

    codes: Tensor
    steps: Tensor
    bits: int
    group: int
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes of the codes and the steps."""
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
    """Return the step of each number, given the steps of groups."""
    return steps.view(-1, 1).expand(-1, group).reshape(-1)[:count]


def quantized_size(count: int, bits: int, group: int) -> int:
    """Return the bytes of `count` numbers after `quantize`."""
    return packed_size(count, bits) + count_groups(count, group) * STEP_TYPE.itemsize


def count_groups(count: int, group: int) -> int:
    """Return the number of groups; the last may be shorter."""
    return -(-count // group)


@torch.no_grad()
def quantize(tensor: Tensor, bits: int, group: int) -> Quantized:
    """Return a tensor's numbers, flattened, in a few bits each with nearly the least squared error.

    With one bit the error is minimal: half a step is the mean absolute value of the group.

    Args:
        tensor: Finite numbers.
        bits: Bits for each number, from 1 to 8.
        group: Number of neighbors that share a step.
    """
    if group < 1:
        raise InvalidValueError(f"a group must have at least 1 number, got {group}")
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
    """Return the best of a few steps for each row, after refining each by alternating least squares."""
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


SHORT = 1 << 20
"""Longest text, in bytes, in which repetitions are found as well."""
_LONGEST = 8  # times the bytes of its file, because a bit can stand for a byte
_MEMORY = 9  # the maximum, for long blocks
_RAW = -15  # without a header and a checksum; the manifest has one


class DamagedStreamError(InvalidValueError):
    """A stream differs from the one that was written."""


def codes_in_a_byte(bits: int) -> int:
    """Return the number of codes in one byte of a stream."""
    return 8 // bits


def loose_size(count: int, bits: int) -> int:
    """Return the bytes of `count` codes in a stream before it is deflated."""
    return -(-count // codes_in_a_byte(bits))


def loosen(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the codes from `pack` with whole codes in each byte."""
    each = codes_in_a_byte(bits)
    rows = torch.zeros(loose_size(count, bits) * each, dtype=torch.uint8)
    rows[:count] = unpack(packed, bits, count)
    places = bits * torch.arange(each, dtype=torch.uint8)
    return (rows.view(-1, each) << places).sum(dim=1, dtype=torch.uint8)


def tighten(loose: Tensor, bits: int, count: int) -> Tensor:
    """Undo `loosen`."""
    places = bits * torch.arange(codes_in_a_byte(bits), dtype=torch.uint8)
    codes = (loose.view(-1, 1) >> places) & (2**bits - 1)
    return pack(codes.view(-1)[:count], bits)


def deflate(numbers: Tensor) -> Tensor:
    """Return a tensor's numbers as compressed bytes; all low bytes come first, then all next ones."""
    raw = torch.frombuffer(bytearray(raw_bytes(numbers)) or bytearray(1), dtype=torch.uint8)
    planes = raw[: numbers.nbytes].view(-1, numbers.element_size()).T
    return _as_tensor(_deflate(planes.contiguous().numpy().tobytes(), zlib.Z_HUFFMAN_ONLY))


def inflate(stream: Tensor, dtype: torch.dtype, shape: tuple[int, int]) -> Tensor:
    """Undo `deflate`.

    Raises:
        DamagedStreamError: The stream is damaged, or does not hold a tensor of this shape.
    """
    size = shape[0] * shape[1] * dtype.itemsize
    data = _inflate(stream, size)
    if len(data) != size:
        raise DamagedStreamError(f"{size} bytes, found {len(data)}")
    if not size:
        return torch.zeros(shape, dtype=dtype)
    planes = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype.itemsize, -1)
    planes = planes.flip(0) if sys.byteorder == "big" else planes
    return planes.T.reshape(-1).view(dtype).view(shape)


def deflate_text(text: str) -> Tensor:
    """Return a string as compressed bytes."""
    data = text.encode()
    return _as_tensor(_deflate(data, zlib.Z_DEFAULT_STRATEGY if len(data) <= SHORT else zlib.Z_HUFFMAN_ONLY))


def inflate_text(stream: Tensor) -> str:
    """Undo `deflate_text`.

    Raises:
        DamagedStreamError: The stream is damaged, too long, or not UTF-8.
    """
    try:
        return _inflate(stream, max(SHORT, _LONGEST * stream.nbytes)).decode()
    except UnicodeDecodeError as error:
        raise DamagedStreamError(f"UTF-8, but {error}") from None


def _deflate(data: bytes, strategy: int) -> bytes:
    made = zlib.compressobj(9, zlib.DEFLATED, _RAW, _MEMORY, strategy)
    return made.compress(data) + made.flush()


def _inflate(stream: Tensor, most: int) -> bytes:
    if stream.dtype != torch.uint8 or stream.ndim != 1:
        raise DamagedStreamError(f"a row of bytes, found {list(stream.shape)} of {stream.dtype}")
    if most > max(SHORT, _LONGEST * stream.nbytes):
        raise DamagedStreamError(f"{most} bytes, but {stream.nbytes} cannot stand for so many")
    made = zlib.decompressobj(_RAW)
    try:
        data = made.decompress(bytes(raw_bytes(stream)), most + 1)
    except zlib.error as error:
        raise DamagedStreamError(f"deflated bytes, but {error}") from None
    if len(data) > most or not made.eof or made.unused_data:
        raise DamagedStreamError(f"at most {most} bytes and nothing behind them")
    return data


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
