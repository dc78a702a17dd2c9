"""Streams of fewer bytes: what is deflated is inflated, and no stream grows beyond what its bytes allow."""

import zlib

import pytest
import torch

from pfge.packed.codes import (
    SHORT,
    DamagedStreamError,
    deflate,
    deflate_text,
    inflate,
    inflate_text,
    loose_size,
    loosen,
    pack,
    tighten,
)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 50])
@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_come_back(bits: int, count: int) -> None:
    codes = torch.randint(2**bits, (count,), generator=torch.Generator().manual_seed(bits), dtype=torch.uint8)
    loose = loosen(pack(codes, bits), bits, count)
    assert len(loose) == loose_size(count, bits) == -(-count // (8 // bits))
    assert torch.equal(tighten(loose, bits, count), pack(codes, bits))


def test_the_first_code_of_a_byte_is_the_lowest() -> None:
    assert loosen(pack(torch.tensor([1, 2, 3, 0, 2], dtype=torch.uint8), 2), 2, 5).tolist() == [0b00111001, 2]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.int64])
@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (2, 0), (0, 4)])
def test_numbers_come_back(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    numbers = (1000 * torch.randn(shape, generator=torch.Generator().manual_seed(1))).to(dtype)
    assert torch.equal(inflate(deflate(numbers), dtype, shape), numbers)


def test_the_bytes_are_deflated_as_the_standard_says() -> None:
    numbers = torch.tensor([[1, 2], [258, 3]], dtype=torch.int16)
    data = zlib.decompress(deflate(numbers).numpy().tobytes(), wbits=-15)
    assert list(data) == [1, 2, 2, 3, 0, 0, 1, 0]  # low bytes, then high bytes


def test_a_stream_is_near_the_entropy_of_its_codes() -> None:
    shares = torch.tensor([0.1, 0.4, 0.4, 0.1])
    codes = torch.multinomial(shares, 40_000, replacement=True, generator=torch.Generator().manual_seed(0))
    packed = pack(codes.to(torch.uint8), 2)
    entropy = float(-(shares * shares.log2()).sum()) * 40_000 / 8
    assert entropy < deflate(loosen(packed, 2, 40_000)).nbytes < 1.02 * entropy < len(packed)


def test_no_stream_is_longer_than_its_bytes_allow() -> None:
    constant = torch.zeros(1, 1 << 21, dtype=torch.uint8)
    stream = deflate(constant)
    assert stream.nbytes * 8 >= constant.nbytes  # no byte takes less than a bit
    assert torch.equal(inflate(stream, torch.uint8, (1, 1 << 21)), constant)
    bomb = torch.frombuffer(bytearray(zlib.compress(bytes(1 << 24), wbits=-15)), dtype=torch.uint8)
    with pytest.raises(DamagedStreamError, match="cannot stand for so many"):
        inflate(bomb, torch.uint8, (1, 1 << 24))
    with pytest.raises(DamagedStreamError, match=f"at most {SHORT} bytes"):
        inflate_text(bomb)


@pytest.mark.parametrize("text", ["", "a", "tensor " * 1000, "0123" * (SHORT // 3)])
def test_texts_come_back(text: str) -> None:
    assert inflate_text(deflate_text(text)) == text


def test_other_bytes_are_refused() -> None:
    stream = deflate(torch.arange(100, dtype=torch.uint8).view(1, -1))
    for damaged in (stream[:-3], torch.cat([stream, stream[:1]]), torch.full((9,), 255, dtype=torch.uint8)):
        with pytest.raises(DamagedStreamError):
            inflate(damaged, torch.uint8, (1, 100))
    with pytest.raises(DamagedStreamError, match="99 bytes"):
        inflate(stream, torch.uint8, (1, 99))
    with pytest.raises(DamagedStreamError, match="UTF-8, but"):
        inflate_text(deflate(torch.full((1, 5), 255, dtype=torch.uint8)))
