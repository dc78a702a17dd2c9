"""Results: every line that was ever appended stays, and half a line never counts."""

from pathlib import Path

import pytest

from pfge.lab.run.results import append_result, read_results
from pfge.storage.files import StorageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def test_there_are_no_results_before_the_first(path: Path) -> None:
    assert read_results(path) == []


def test_results_come_back_in_their_order(path: Path) -> None:
    results = [{"seed": 1, "nll": 0.1 + 0.2}, {"seed": 2, "each": [1, None, "é"]}]
    for result in results:
        append_result(path, result)
    assert read_results(path) == results


def test_appending_leaves_what_was_there(path: Path) -> None:
    append_result(path, {"seed": 1})
    before = path.read_bytes()
    append_result(path, {"seed": 2})
    assert path.read_bytes() == before + b'{"seed": 2}\n'


def test_a_torn_last_line_is_not_read(path: Path) -> None:
    append_result(path, {"seed": 1})
    append_result(path, {"seed": 2, "name": "é"})
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    for end in range(second, len(whole)):  # a crash may come after any byte, inside a character too
        path.write_bytes(whole[:end])
        assert read_results(path) == [{"seed": 1}]


def test_appending_replaces_a_torn_line(path: Path) -> None:
    append_result(path, {"seed": 1})
    with path.open("ab") as file:
        file.write(b'{"seed": 2, "acc')
    append_result(path, {"seed": 3})
    assert path.read_bytes() == b'{"seed": 1}\n{"seed": 3}\n'


def test_a_torn_first_line_is_replaced_too(path: Path) -> None:
    path.write_bytes(b'{"se')
    append_result(path, {"seed": 1})
    assert path.read_bytes() == b'{"seed": 1}\n'


def test_a_damaged_line_is_named(path: Path) -> None:
    path.write_text('{"seed": 1}\n{"seed": \n{"seed": 3}\n')
    with pytest.raises(StorageError, match=r"line 2 of .*results\.jsonl must be JSON, .*remove that line"):
        read_results(path)
