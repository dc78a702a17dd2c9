"""Inputs from .npy files: examples of the data's shape as float32, and a reason for anything else."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pfge.lab.data import DataError
from pfge.lab.data.array_inputs import read_array_inputs

SHAPE = torch.Size([2, 3])


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int16, np.uint8, np.bool_])
def test_numbers_of_any_type_become_float32(tmp_path: Path, kind: type) -> None:
    array = np.arange(12).reshape(2, 2, 3) % 2
    np.save(tmp_path / "rows.npy", array.astype(kind))
    found = read_array_inputs(tmp_path / "rows.npy", SHAPE)
    assert found.dtype == torch.float32
    assert found.tolist() == array.tolist()


def test_one_example_is_a_batch_of_one(tmp_path: Path) -> None:
    np.save(tmp_path / "row.npy", np.ones((2, 3)))
    assert read_array_inputs(tmp_path / "row.npy", SHAPE).shape == (1, 2, 3)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((4, 3, 2)), r"must hold examples \['N', 2, 3\], or one \[2, 3\], got \[4, 3, 2\]"),
        (np.array(["a"]), "must be one .npy array of numbers, got <U1"),
        (np.zeros(3, complex), "must be one .npy array of numbers, got complex128"),
    ],
)
def test_another_shape_or_type_is_named(tmp_path: Path, array: np.ndarray, expected: str) -> None:
    np.save(tmp_path / "rows.npy", array)
    with pytest.raises(DataError, match=expected):
        read_array_inputs(tmp_path / "rows.npy", SHAPE)


def test_a_number_that_is_too_large_is_refused_with_its_example(tmp_path: Path) -> None:
    array = np.ones((4, 2, 3))
    array[2, 1, 0] = array[3, 0, 0] = 1e300
    np.save(tmp_path / "rows.npy", array)
    expected = r"rows\.npy must hold numbers of float32, got 1e\+300 in example 2, counted from 0; correct it"
    with pytest.raises(DataError, match=expected):
        read_array_inputs(tmp_path / "rows.npy", SHAPE)


def test_missing_values_are_for_the_model_to_replace(tmp_path: Path) -> None:
    np.save(tmp_path / "row.npy", np.full((2, 3), np.nan))
    assert read_array_inputs(tmp_path / "row.npy", SHAPE).isnan().all()


def test_the_largest_float32_is_a_number(tmp_path: Path) -> None:
    np.save(tmp_path / "row.npy", np.full((2, 3), np.finfo(np.float32).max, np.float64))
    assert read_array_inputs(tmp_path / "row.npy", SHAPE).isfinite().all()


def test_several_arrays_in_a_file_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", a=np.zeros((2, 3)))
    with pytest.raises(DataError, match=r"must be one \.npy array of numbers, got several"):
        read_array_inputs(tmp_path / "rows.npz", SHAPE)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "touched",))  # type: ignore[return-value]

    np.save(tmp_path / "rows.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"cannot be read as a \.npy array of numbers"):
        read_array_inputs(tmp_path / "rows.npy", SHAPE)
    assert not (tmp_path / "touched").exists()
