"""Inputs from .npy files: examples of the data's shape as float32, and a reason for anything else."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pfge.lab.data import DataError
from pfge.lab.data.single_inputs import read_array_inputs

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
        (np.array(["a"]), "cannot be read as a .npy array of numbers: it holds <U1, not numbers"),
        (np.zeros(3, complex), "cannot be read as a .npy array of numbers: it holds complex128, not numbers"),
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


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", a=np.zeros((2, 3)))
    (tmp_path / "rows.csv").write_text("1,2,3\n4,5,6\n")
    for name in ("rows.npz", "rows.csv"):
        with pytest.raises(DataError, match=r"it is another kind of file; save the array with numpy\.save$"):
            read_array_inputs(tmp_path / name, SHAPE)


def npy(header: str, data: bytes = bytes(24), version: int = 1) -> bytes:
    """Return a .npy file by the description of its format: magic, version, length and text of its header."""
    text = header.encode("latin-1") + b"\n"
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + len(text).to_bytes(2 if version == 1 else 4, "little")
        + text
        + data
    )


def described(shape: str, kind: str = "'<f4'") -> str:
    return f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}}}"


@pytest.mark.parametrize("version", [1, 2])
def test_a_header_of_either_version_is_read(tmp_path: Path, version: int) -> None:
    (tmp_path / "row.npy").write_bytes(npy(described("(2, 3)"), version=version))
    assert read_array_inputs(tmp_path / "row.npy", SHAPE).tolist() == [[[0.0] * 3] * 2]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (described("(True, 2, 3)"), r"its shape must be sizes of a tensor, got \(True, 2, 3\)"),
        (described("(10**25, 2, 3)"), "its header is damaged"),
        (described(f"({10**25}, 2, 3)"), "its shape must be sizes of a tensor, got"),
        (described("(-1, 2, 3)"), "its shape must be sizes of a tensor, got"),
        (described("(1000000000000, 2, 3)"), "needs other than the 24 bytes that follow"),
        (described(f"({2**62}, {2**62}, 0, 2, 3)"), "needs other than the 24 bytes that follow"),
        (described("(2, 3)", "'<f8'"), "needs other than the 24 bytes that follow"),
        (described("(2, 3)", "'|O'"), "it holds object, not numbers"),
        (described("(2, 3)", "[('a', '<f4')]"), "not numbers"),
        (described("(2, 3)", "'<f99999999999999999999'"), "its header is damaged"),
        ("[" * 5000, "its header is damaged"),
        ("{'shape': (2, 3)", "its header is damaged"),
        ("", "its header is damaged"),
        ("x" * 20_000, "its header is damaged"),
    ],
)
def test_a_header_that_does_not_fit_the_file_is_refused_before_anything_is_made(
    tmp_path: Path, header: str, expected: str
) -> None:
    (tmp_path / "rows.npy").write_bytes(npy(header))
    with pytest.raises(DataError, match=expected) as refusal:
        read_array_inputs(tmp_path / "rows.npy", SHAPE)
    assert len(str(refusal.value)) < 300 + len(str(tmp_path))


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "touched",))  # type: ignore[return-value]

    np.save(tmp_path / "rows.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"cannot be read as a \.npy array of numbers"):
        read_array_inputs(tmp_path / "rows.npy", SHAPE)
    assert not (tmp_path / "touched").exists()
