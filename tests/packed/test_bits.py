import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pfge.packed.codes import pack, packed_size, unpack


@st.composite
def numbers_of_some_bits(draw: st.DrawFn) -> tuple[Tensor, int]:
    bits = draw(st.integers(1, 8))
    shape = draw(st.lists(st.integers(0, 9), max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.randint(2**bits, shape, generator=generator, dtype=torch.uint8), bits


@settings(max_examples=100)
@given(numbers_of_some_bits())
def test_what_is_packed_is_unpacked(case: tuple[Tensor, int]) -> None:
    numbers, bits = case
    packed = pack(numbers, bits)
    assert len(packed) == packed_size(numbers.numel(), bits)
    assert torch.equal(unpack(packed, bits, numbers.numel()).view(numbers.shape), numbers)


@pytest.mark.parametrize("bits", range(1, 9))
def test_every_number_of_a_width_survives_at_every_place_in_a_byte(bits: int) -> None:
    for shift in range(8):
        numbers = torch.arange(2**bits, dtype=torch.uint8).roll(shift)
        assert torch.equal(unpack(pack(numbers, bits), bits, 2**bits), numbers)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
def test_scalars_and_empty_tensors_are_packed(shape: tuple[int, ...]) -> None:
    numbers = torch.full(shape, 5, dtype=torch.uint8)
    packed = pack(numbers, 3)
    assert len(packed) == 3 * numbers.numel()  # a byte for each plane of the one number
    assert torch.equal(unpack(packed, 3, numbers.numel()).view(shape), numbers)


def test_the_layout_is_planes_from_the_lowest_bit() -> None:
    # 5 = 101, 3 = 011, 4 = 100 in binary: lowest bits 1 1 0, then 0 1 0, then 1 0 1.
    assert pack(torch.tensor([5, 3, 4]), 3).tolist() == [0b011, 0b010, 0b101]


def test_numpy_packs_a_plane_the_same_way() -> None:
    bits = torch.randint(2, (77,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    assert pack(bits, 1).tolist() == np.packbits(bits.numpy(), bitorder="little").tolist()


def test_nothing_is_wasted_but_the_last_byte_of_a_plane() -> None:
    assert [packed_size(64, bits) for bits in (1, 3, 8)] == [8, 24, 64]
    assert packed_size(65, 3) == 27


@pytest.mark.parametrize("bits", [0, 9])
def test_widths_out_of_range_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=f"bits must be from 1 to 8, got {bits}"):
        pack(torch.zeros(3), bits)
    with pytest.raises(ValueError, match=f"bits must be from 1 to 8, got {bits}"):
        unpack(torch.zeros(3, dtype=torch.uint8), bits, 3)


def test_numbers_that_need_more_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="2-bit numbers must be from 0 to 3, got 1 to 4"):
        pack(torch.tensor([1, 4]), 2)


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="9 numbers of 3 bits must have 6 bytes, got 5"):
        unpack(torch.zeros(5, dtype=torch.uint8), 3, 9)
