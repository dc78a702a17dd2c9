import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from pfge.lab.data.base import DataError
from pfge.lab.data.published import read_plain_pickle


class Calls:
    """An object whose pickle calls a function when it is read."""

    def __init__(self, function: object, *arguments: object) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self._call


def written(path: Path, value: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


def test_plain_values_are_read_as_they_were(tmp_path: Path):
    value = {"a": [1, 2.5, None, True], "b": ("x", b"y"), 3: {"nested": []}}
    assert read_plain_pickle(written(tmp_path / "file", value)) == value


@pytest.mark.parametrize("dtype", ["u1", "i8", "f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_read_as_they_were(tmp_path: Path, dtype: str, order: str):
    array = np.asarray(np.arange(6).reshape(2, 3), dtype=dtype, order=order)
    read = read_plain_pickle(written(tmp_path / "file", {"data": array}))
    assert isinstance(read, dict)
    assert read["data"].dtype == array.dtype
    np.testing.assert_array_equal(read["data"], array)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_runs_a_command_is_refused_and_runs_nothing(tmp_path: Path, protocol: int):
    proof = tmp_path / "proof"
    path = written(tmp_path / "file", [Calls(os.system, f"touch {proof}")], protocol)
    with pytest.raises(DataError, match=r"file was refused .* it asks for posix.system"):
        read_plain_pickle(path)
    assert not proof.exists()


@pytest.mark.parametrize("function", [eval, exec, __import__, getattr])
def test_builtin_functions_are_refused(tmp_path: Path, function: object):
    with pytest.raises(DataError, match=r"it asks for builtins\."):
        read_plain_pickle(written(tmp_path / "file", Calls(function, "1")))


def test_numpy_functions_other_than_the_array_builders_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"it asks for numpy\.fromfile"):
        read_plain_pickle(written(tmp_path / "file", Calls(np.fromfile, "x")))


def test_an_array_of_objects_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"arrays may hold only .* got 'O8'"):
        read_plain_pickle(written(tmp_path / "file", np.array([{}, []], dtype=object)))


def test_a_builder_that_is_not_used_as_one_is_refused(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"cnumpy\ndtype\n.")
    with pytest.raises(DataError, match="it holds a type, which is not plain data"):
        read_plain_pickle(tmp_path / "file")


def test_a_builder_cannot_be_changed_by_a_pickle(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"cnumpy\ndtype\n}Vcode\nK\x01sb.")
    with pytest.raises(DataError, match="missing 1 required positional argument: 'state'"):
        read_plain_pickle(tmp_path / "file")


@pytest.mark.parametrize("content", [b"", b"\x80\x04]", b"not a pickle", b"\x80\x04]\x94(K\x01"])
def test_a_damaged_pickle_is_named(tmp_path: Path, content: bytes):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DataError, match=r"file was refused .* fetch it again"):
        read_plain_pickle(tmp_path / "file")


def test_an_array_that_is_shorter_than_its_shape_is_refused(tmp_path: Path):
    five, nine = b"K\x05\x85", b"K\x09\x85"  # the shapes (5,) and (9,) as opcodes
    content = pickle.dumps(np.zeros(5, dtype=np.uint8), protocol=4)
    assert five in content
    (tmp_path / "file").write_bytes(content.replace(five, nine))
    with pytest.raises(DataError, match=r"an array of shape \(9,\) has 5 elements"):
        read_plain_pickle(tmp_path / "file")


def test_a_few_bytes_that_ask_for_gigabytes_are_refused(tmp_path: Path):
    # LONG_BINPUT numbers a value 0x1fffffff; a reader makes room for all numbers up to it.
    path = tmp_path / "small.pickle"
    path.write_bytes(b"Nr\xff\xff\xff\x1f.")
    with pytest.raises(DataError, match="numbers a value 536870911, but has 3 operations"):
        read_plain_pickle(path)


def test_values_that_refer_to_each_other_many_times_are_read_once_each(tmp_path: Path):
    value: list[object] = ["x"]
    for _ in range(15):
        value = [value, value, value, value]  # 4^15 ends
    found = read_plain_pickle(written(tmp_path / "shared.pickle", value))
    assert isinstance(found, list)
    assert found[0] is found[3]


def test_values_nested_too_deep_or_in_themselves_are_refused(tmp_path: Path):
    deep: list[object] = []
    for _ in range(50):
        deep = [deep]
    cycle: list[object] = []
    cycle.append(cycle)
    for value in (deep, cycle):
        with pytest.raises(DataError, match="nested deeper than 20, or contain themselves"):
            read_plain_pickle(written(tmp_path / "deep.pickle", value))
