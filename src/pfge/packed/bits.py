"""Whole numbers of 1 to 8 bits, packed without gaps into bytes."""

import torch
from torch import Tensor


def packed_size(count: int, bits: int) -> int:
    """Return how many bytes hold `count` numbers of so many bits."""
    return bits * -(-count // 8)


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Return the numbers, from 0 to 2**bits - 1 and in any shape, as one row of bytes.

    The lowest bits of all numbers come first, then the second lowest, and so on; bit j of byte i of
    such a plane is number 8 i + j. Bytes of 8-bit numbers are the numbers themselves, padded with zeros
    to a multiple of 8, as every width is.
    """
    _require_bits(bits)
    flat = numbers.reshape(-1)
    if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < 2**bits:
        raise ValueError(
            f"numbers of {bits} bits are from 0 to {2**bits - 1}, got {int(flat.min())} to {int(flat.max())}"
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
    """Return the first `count` numbers of a packed row."""
    _require_bits(bits)
    if len(packed) != packed_size(count, bits):
        raise ValueError(
            f"{count} numbers of {bits} bits take {packed_size(count, bits)} bytes, got {len(packed)}"
        )
    if bits == 8:
        return packed[:count]
    # Eight numbers lie in one of 64 bits, a byte each, so that an operation is on eight of them at once.
    # Planes have no bit in common, so that their sum is all of them.
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
        raise ValueError(f"numbers are packed in 1 to 8 bits, got {bits}")
