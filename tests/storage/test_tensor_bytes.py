"""The bytes of a file of tensors: those that safetensors itself writes."""

import sys

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from pfge.storage.files import _TYPES, raw_bytes, tensor_file


def make(dtype: torch.dtype, count: int) -> Tensor:
    """Return numbers of a type whose bytes are all different, or true and false."""
    raw = torch.arange(count * dtype.itemsize, dtype=torch.uint8)
    return (raw % 2 if dtype is torch.bool else raw).view(dtype)


def every_kind() -> dict[str, Tensor]:
    """Return tensors of every type, with and without dimensions and numbers, in no particular order."""
    found = {}
    for dtype in sorted(_TYPES, key=str):
        found[f"ü/{dtype}"] = make(dtype, 6).reshape(2, 3)
        found[f"{dtype}"] = make(dtype, 1)[0].clone()
        found[f"A {dtype}"] = make(dtype, 0).reshape(0, 3)
    return found


@pytest.mark.parametrize("metadata", [None, {"key": 'a "quoted" text\nin lines\x01 ü\u2028'}])
def test_the_bytes_are_those_of_the_library(metadata: dict[str, str] | None) -> None:
    assert b"".join(tensor_file(every_kind(), metadata)) == save(every_kind(), metadata)


def test_a_file_without_tensors() -> None:
    assert b"".join(tensor_file({})) == save({})


@pytest.mark.parametrize("length", range(1, 10))
def test_names_of_any_length_keep_the_numbers_aligned(length: int) -> None:
    tensors = {"x" * length: torch.ones(3), 'y"\\': torch.ones(1, dtype=torch.float64)}
    assert b"".join(tensor_file(tensors)) == save(tensors)


def test_views_are_written_as_what_they_show() -> None:
    base = torch.arange(6.0).reshape(2, 3)
    complex_numbers = torch.tensor([1 + 2j])
    views = {
        "transposed": base.T,
        "part": base[1],
        "whole": base,
        "lone": base.T[1:2, 1],
        "conjugate": complex_numbers.conj(),
        "negative": complex_numbers.conj().imag,
    }
    found = load(b"".join(tensor_file(views)))
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "transposed": [[0, 3], [1, 4], [2, 5]],
        "part": [3, 4, 5],
        "whole": [[0, 1, 2], [3, 4, 5]],
        "lone": [4],
        "conjugate": [1 - 2j],
        "negative": [-2],
    }


def test_numbers_are_not_copied() -> None:
    tensor = torch.zeros(3)
    view = raw_bytes(tensor)
    tensor[0] = 1
    assert bytes(view) == bytes.fromhex("0000803f0000000000000000")


def test_metadata_has_the_order_in_which_it_is_given() -> None:
    keys = [f"key {number}" for number in range(20)]
    first, _ = tensor_file({"a": torch.ones(1)}, dict.fromkeys(keys, ""))
    places = [first.index(f'"{key}"'.encode()) for key in keys]
    assert places == sorted(places)


def test_the_low_byte_comes_first_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = {
        "int16": torch.tensor([0x0102], dtype=torch.int16),
        "complex": torch.complex(torch.tensor([1.0]), torch.tensor([2.0])),
        "bool": torch.tensor([True, False]),
    }
    here = {name: bytes(raw_bytes(tensor)) for name, tensor in swapped.items()}
    monkeypatch.setattr(sys, "byteorder", "big" if sys.byteorder == "little" else "little")
    there = {name: bytes(raw_bytes(tensor)) for name, tensor in swapped.items()}
    assert there["int16"] == here["int16"][::-1]
    assert there["complex"] == here["complex"][3::-1] + here["complex"][:3:-1]
    assert there["bool"] == here["bool"]


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2).to_sparse(), torch.ones(2, device="meta"), torch.ones(2, dtype=torch.complex128)],
    ids=["sparse", "meta", "type"],
)
def test_a_tensor_that_the_format_does_not_have_is_named(tensor: Tensor) -> None:
    with pytest.raises(
        ValueError, match=r"a safetensors file holds dense tensors of numbers, got 'layer\.w' of"
    ):
        list(tensor_file({"first": torch.ones(1), "layer.w": tensor}))


def test_the_name_that_the_format_reserves_is_refused_before_anything_is_written() -> None:
    with pytest.raises(
        ValueError, match=r"must not be named '__metadata__', .* rename the parameter or buffer"
    ):
        next(iter(tensor_file({"__metadata__": torch.zeros(1)})))
