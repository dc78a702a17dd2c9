"""Files of results: an appended line stays, half a line never counts, and a bad one is named."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pfge.lab.run.results import (
    ComparisonRow,
    append_row,
    put_in_order,
    read_rows,
    record_of_lines,
    require_rows,
)
from pfge.storage.files import KEY, StorageError, seal
from pfge.tasks import DEFAULT_TASK
from tests.reports.made_run import result
from tests.tasks.fractions import Fractions

FIRST, SECOND = (ComparisonRow.from_json(result("PFGE", seed)) for seed in (1, 2))
REMEDY = "remove results.jsonl and run the same pfge compare, which only measures again"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def write(path: Path, *lines: Any) -> None:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))


def rows(path: Path) -> list[ComparisonRow]:
    return require_rows(path, ComparisonRow)


def test_there_are_no_results_before_the_first(path: Path) -> None:
    assert rows(path) == []


def test_results_come_back_in_their_order(path: Path) -> None:
    odd = replace(SECOND, method="é", member_iterations=[None] * 4)
    for row in (FIRST, odd):
        append_row(path, row)
    assert rows(path) == [FIRST, odd]


def test_appending_leaves_what_was_there(path: Path) -> None:
    append_row(path, FIRST)
    before = path.read_bytes()
    append_row(path, SECOND)
    assert path.read_bytes() == before + json.dumps(seal(SECOND.to_json())).encode() + b"\n"


def test_a_line_that_is_not_as_it_was_written_is_not_used(path: Path) -> None:
    append_row(path, FIRST)
    append_row(path, SECOND)
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(first + second.replace('"seed": ', '"seed": 1', 1))
    found = read_rows(path, ComparisonRow)
    assert found.rows == [FIRST]
    assert found.left_out[0].startswith(
        "line 2 of results.jsonl is left out: its content does not have the SH"
    )
    with pytest.raises(StorageError, match=f"SHA-256 that it states.*remove {KEY}; otherwise remove results"):
        rows(path)


def test_a_line_without_a_digest_is_read(path: Path) -> None:
    write(path, FIRST.to_json())
    append_row(path, SECOND)
    assert rows(path) == [FIRST, SECOND]


def test_rows_are_put_in_order_with_the_bytes_that_they_have(path: Path) -> None:
    other = replace(SECOND, method="other")
    for row in (other, SECOND, FIRST):
        append_row(path, row)
    lines = path.read_bytes().splitlines(keepends=True)
    with path.open("ab") as file:
        file.write(b"torn")
    put_in_order(path, ComparisonRow, [FIRST.key, ("never", "made"), SECOND.key])
    assert path.read_bytes() == lines[2] + lines[1] + lines[0]


def test_rows_that_are_in_order_are_not_written_again(path: Path) -> None:
    put_in_order(path, ComparisonRow, [FIRST.key])
    assert not path.exists()
    for row in (FIRST, SECOND):
        append_row(path, row)
    before = path.stat()
    put_in_order(path, ComparisonRow, [FIRST.key, SECOND.key])
    assert path.stat() == before


APPENDING = """
import sys
from dataclasses import replace
from pathlib import Path
from pfge.lab.run.results import ComparisonRow, append_row
from tests.reports.made_run import result
first = ComparisonRow.from_json(result("PFGE", 1))
for number in range(25):
    append_row(Path(sys.argv[1]), replace(first, method=sys.argv[2] + str(number)))
"""


@pytest.mark.slow
def test_processes_that_append_at_once_wait_for_each_other(path: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", APPENDING, path, name]) for name in "ab"]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(rows(path)) == 50


def test_a_torn_last_line_is_not_read(path: Path) -> None:
    append_row(path, FIRST)
    record = record_of_lines(path).read_bytes()
    append_row(path, replace(SECOND, method="é"))
    record_of_lines(path).write_bytes(record)  # a line is recorded once it is whole
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    inside_a_character = whole.index("é".encode()) + 1
    for end in (second, second + 1, inside_a_character, len(whole) - 1):  # a crash may come after any byte
        path.write_bytes(whole[:end])
        assert rows(path) == [FIRST]
        said = ["the end of results.jsonl is left out: its last line, "] if end > second else []
        assert [problem[: len(said[0])] for problem in read_rows(path, ComparisonRow).left_out] == said


def test_appending_replaces_a_torn_line(path: Path) -> None:
    append_row(path, FIRST)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"seed": 2, "acc')
    append_row(path, SECOND)
    assert rows(path) == [FIRST, SECOND]
    assert path.read_bytes().startswith(whole)


def test_a_torn_first_line_is_replaced_too(path: Path) -> None:
    path.write_bytes(b'{"se')
    append_row(path, FIRST)
    assert rows(path) == [FIRST]


def test_a_damaged_line_is_named(path: Path) -> None:
    write(path, FIRST.to_json(), '{"seed": ', SECOND.to_json())
    with pytest.raises(StorageError, match=r"line 2 of .*results\.jsonl cannot be used: it must be JSON"):
        rows(path)
    found = read_rows(path, ComparisonRow)
    assert found.rows == [FIRST, SECOND]
    (problem,) = found.left_out
    assert problem.startswith("line 2 of results.jsonl is left out: it must be JSON, but Expecting value")
    assert problem.endswith("; remove that line")


def test_a_line_from_before_there_were_versions_is_read(path: Path) -> None:
    older = FIRST.to_json()
    del older["version"]
    write(path, older)
    assert rows(path) == [FIRST]


def test_a_line_of_an_older_version_that_lacks_a_key_is_left_out_with_what_to_do(path: Path) -> None:
    older = {key: value for key, value in result("PFGE", 1).items() if key != "bytes"}
    write(path, SECOND.to_json(), older)
    found = read_rows(path, ComparisonRow)
    assert found.rows == [SECOND]
    assert found.left_out == [
        "line 2 of results.jsonl is left out: bytes is missing; it may come from an older version of pfge; "
        f"{REMEDY}"
    ]
    with pytest.raises(StorageError, match=rf"line 2 of {path} cannot be used: bytes is missing"):
        rows(path)


def test_a_line_of_this_version_that_lacks_a_key_is_not_called_old(path: Path) -> None:
    write(path, {**FIRST.to_json(), "members": 0})
    (problem,) = read_rows(path, ComparisonRow).left_out
    assert problem == f"line 1 of results.jsonl is left out: members must be at least 1, got 0; {REMEDY}"


def test_a_line_of_a_later_version_says_what_reads_it(path: Path) -> None:
    write(path, {**FIRST.to_json(), "version": 2})
    (problem,) = read_rows(path, ComparisonRow).left_out
    assert problem == (
        "line 1 of results.jsonl is left out: its format is version 2, and this pfge reads up to 1; "
        "install a later pfge"
    )


def test_a_repeated_line_does_not_count_as_another_seed(path: Path) -> None:
    changed = FIRST.to_json() | {"iterations": 7}
    write(path, FIRST.to_json(), SECOND.to_json(), changed)
    found = read_rows(path, ComparisonRow)
    assert found.rows == [FIRST, SECOND]
    assert found.left_out == [
        "line 3 of results.jsonl is left out: it repeats line 1; remove that line",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{}", "seed is missing"),
        ("true", "it must be a JSON object, got True"),
        ("null", "it must be a JSON object, got null"),
        ("[1]", "it must be a JSON object, got a list"),
        ("[" * 100_000, "it must be JSON, but maximum recursion depth exceeded"),
        ("1" * 5000, "it must be JSON, but a whole number must have at most 64 bits"),
        ("", "it must be JSON"),
    ],
)
def test_no_line_of_json_ends_in_anything_but_a_message(path: Path, line: str, expected: str) -> None:
    write(path, line, FIRST.to_json())
    found = read_rows(path, ComparisonRow)
    assert found.rows == [FIRST]
    (problem,) = found.left_out
    assert problem.startswith(f"line 1 of results.jsonl is left out: {expected}")


def test_all_lines_of_a_file_are_of_one_task(path: Path, fractions: Fractions) -> None:
    other = ComparisonRow(
        seed=3, method="PFGE", task=fractions, members=1, bytes=4, bytes_of_one=4, iterations=1,
        metrics={"test": {"mse": 0.5}},
    )  # fmt: skip
    write(path, FIRST.to_json(), other.to_json())
    reason = f"its task is Fractions(places=6), and that of the file {DEFAULT_TASK}; {REMEDY}"
    found = read_rows(path, ComparisonRow)
    assert found.rows == [FIRST]
    assert found.left_out == [f"line 2 of results.jsonl is left out: {reason}"]
    with pytest.raises(StorageError, match=re.escape(f"line 2 of {path} cannot be used: {reason}")):
        rows(path)
    with pytest.raises(StorageError, match=r"line 1 of .* its task is .*Classification"):
        require_rows(path, ComparisonRow, fractions)
