"""Streams of codes and steps in fewer bytes, by Huffman's code (DEFLATE, RFC 1951, as zlib has it).

Codes near the middle are more frequent than outer ones, so a code takes fewer bits than its width on average.
As many codes as fit lie in one byte, because Huffman's code gives at least one bit to each byte. Nothing
refers back to earlier bytes, except in short texts, so that what comes out of a stream is at most 8 times as
long as the stream: a reader of strangers' files knows how much memory one can take.
"""

import sys
import zlib

import torch
from torch import Tensor

from pfge.packed.bits import pack, unpack
from pfge.storage.tensor_bytes import raw_bytes

SHORT = 1 << 20
"""Bytes of a text in which repetitions are found as well."""
_LONGEST = 8  # times the bytes of its file: a bit for a byte
_MEMORY = 9  # the most, for long blocks
_RAW = -15  # without a header and a checksum, which the manifest has


class DamagedStreamError(ValueError):
    """A stream that is not what was written."""


def codes_in_a_byte(bits: int) -> int:
    """Return how many codes lie in one byte of a stream."""
    return 8 // bits


def loose_size(count: int, bits: int) -> int:
    """Return the bytes of so many codes in a stream before it is deflated."""
    return -(-count // codes_in_a_byte(bits))


def loosen(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return packed codes, as of `bits.pack`, with whole codes in each byte."""
    each = codes_in_a_byte(bits)
    rows = torch.zeros(loose_size(count, bits) * each, dtype=torch.uint8)
    rows[:count] = unpack(packed, bits, count)
    places = bits * torch.arange(each, dtype=torch.uint8)
    return (rows.view(-1, each) << places).sum(dim=1, dtype=torch.uint8)


def tighten(loose: Tensor, bits: int, count: int) -> Tensor:
    """Return what `loosen` was given."""
    places = bits * torch.arange(codes_in_a_byte(bits), dtype=torch.uint8)
    codes = (loose.view(-1, 1) >> places) & (2**bits - 1)
    return pack(codes.view(-1)[:count], bits)


def deflate(numbers: Tensor) -> Tensor:
    """Return the numbers of a tensor as a row of bytes; all low bytes come first, then all next ones."""
    raw = torch.frombuffer(bytearray(raw_bytes(numbers)) or bytearray(1), dtype=torch.uint8)
    planes = raw[: numbers.nbytes].view(-1, numbers.element_size()).T
    return _as_tensor(_deflate(planes.contiguous().numpy().tobytes(), zlib.Z_HUFFMAN_ONLY))


def inflate(stream: Tensor, dtype: torch.dtype, shape: tuple[int, int]) -> Tensor:
    """Return the tensor that `deflate` was given.

    Raises:
        DamagedStreamError: The stream holds other than so many numbers.
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
    """Return a text as a row of bytes."""
    data = text.encode()
    return _as_tensor(_deflate(data, zlib.Z_DEFAULT_STRATEGY if len(data) <= SHORT else zlib.Z_HUFFMAN_ONLY))


def inflate_text(stream: Tensor) -> str:
    """Return the text that `deflate_text` was given.

    Raises:
        DamagedStreamError: It is longer than any such text, or none.
    """
    try:
        return _inflate(stream, max(SHORT, _LONGEST * stream.nbytes)).decode()
    except UnicodeDecodeError as error:
        raise DamagedStreamError(f"a text, but {error}") from None


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
