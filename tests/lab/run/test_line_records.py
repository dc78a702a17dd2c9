"""The record of a file's lines: a line that goes missing is noticed, and a kill is not taken for that."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pfge.lab.run import results
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.results import (
    ComparisonRow,
    append_row,
    put_in_order,
    read_rows,
    record_of_lines,
    require_rows,
)
from pfge.storage.files import StorageError, read_json_object, seal, write_json
from tests.lab.tiny import tiny
from tests.reports.made_run import result

ROWS = [ComparisonRow.from_json(result("PFGE", seed)) for seed in (1, 2, 3)]
LACKS_ONE = (
    "{path} lacks a line that it had by results.lines.json; restore the file, or remove results.lines.json "
    "and run the same command, which repeats the missing work"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of three rows."""
    path = tmp_path / "results.jsonl"
    for row in ROWS:
        append_row(path, row)
    return path


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_line_that_was_removed_is_missed(path: Path, missing: int) -> None:
    left = [number for number in range(3) if number != missing]
    path.write_bytes(b"".join(lines(path)[number] for number in left))
    message = LACKS_ONE.format(path=path)
    found = read_rows(path, ComparisonRow)
    assert found.rows == [ROWS[number] for number in left]
    assert found.left_out == [message]
    before = path.read_bytes()
    another = replace(ROWS[0], method="another")
    for use in (
        lambda: require_rows(path, ComparisonRow),
        lambda: append_row(path, another),
        lambda: put_in_order(path, ComparisonRow, ()),
    ):
        with pytest.raises(StorageError) as raised:
            use()
        assert str(raised.value) == message
    assert path.read_bytes() == before


def test_an_empty_file_in_place_of_three_lines_is_noticed(path: Path) -> None:
    path.write_bytes(b"")
    (problem,) = read_rows(path, ComparisonRow).left_out
    assert problem.startswith(f"{path} lacks 3 lines that it had by results.lines.json; restore the file")


def test_a_line_that_was_removed_with_the_record_is_made_again(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(b"".join(lines(path)[:2]))
    record_of_lines(path).unlink()
    assert require_rows(path, ComparisonRow) == ROWS[:2]
    append_row(path, ROWS[2])
    assert path.read_bytes() == whole
    assert len(read_json_object(record_of_lines(path))["lines"]) == 3


def test_a_kill_before_the_line_is_recorded_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(_: Path) -> None:
        raise KeyboardInterrupt

    before = record_of_lines(path).read_bytes()
    another = replace(ROWS[0], method="another")
    with monkeypatch.context() as patch:
        patch.setattr(results, "record_lines", kill)
        with pytest.raises(KeyboardInterrupt):
            append_row(path, another)
    assert record_of_lines(path).read_bytes() == before
    assert require_rows(path, ComparisonRow) == [*ROWS, another]
    put_in_order(path, ComparisonRow, ())
    path.write_bytes(b"".join(lines(path)[:3]))
    assert len(read_rows(path, ComparisonRow).left_out) == 1


def test_records_of_lines_in_another_order_are_the_same_after_ordering(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "results.jsonl"
    other.parent.mkdir()
    for row in reversed(ROWS):
        append_row(other, row)
    assert record_of_lines(other).read_bytes() != record_of_lines(path).read_bytes()
    for file in (path, other):
        put_in_order(file, ComparisonRow, [row.key for row in ROWS])
    assert record_of_lines(other).read_bytes() == record_of_lines(path).read_bytes()


def test_an_edited_line_is_another_one(path: Path) -> None:
    edited = json.dumps(seal(replace(ROWS[2], iterations=7).to_json())).encode()
    path.write_bytes(b"".join(lines(path)[:2]) + edited + b"\n")
    assert read_rows(path, ComparisonRow).left_out == [LACKS_ONE.format(path=path)]


def test_a_damaged_record_is_named(path: Path) -> None:
    record = record_of_lines(path)
    record.write_text(record.read_text().replace("lines", "line_"))
    (problem,) = read_rows(path, ComparisonRow).left_out
    assert problem.startswith(f"{record} is not as it was written")
    write_json(record, {"lines": [1]})
    (problem,) = read_rows(path, ComparisonRow).left_out
    assert problem == f"{record} must have a list of strings as lines; remove it"


def test_a_run_whose_results_were_removed_forgets_their_record(path: Path, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.opened(tiny()):
        pass
    record_of_lines(path).rename(record_of_lines(folder.results))
    assert read_rows(folder.results, ComparisonRow).left_out == []
    with folder.opened(tiny()):
        assert not record_of_lines(folder.results).exists()
