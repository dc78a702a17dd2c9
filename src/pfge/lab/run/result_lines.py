"""Files of results: one JSON object per line, appended, with a record of the lines beside it."""

import json
import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from filelock import lock_descriptor

from pfge.lab.config.typed import FieldError
from pfge.lab.run.results import LaterVersionError, MeasuredRow, ResultRow
from pfge.storage.files import (
    BrokenSealError,
    StorageError,
    UnreadableFileError,
    content_digest,
    is_sealed,
    parse_json,
    read_bounded,
    read_json_object,
    regular_only,
    seal,
    unseal,
    write_json,
    write_text,
)
from pfge.tasks import Task

KEY = "lines"


def record_of(path: Path) -> Path:
    """Return the file that records the lines of a file of results."""
    return path.with_suffix(".lines.json")


def record_lines(path: Path) -> None:
    """Record the lines of a file, in their order.

    Raises:
        StorageError: A line that is recorded is missing.
    """
    require_recorded(path)
    lines = [*_digests(path)]
    if lines != _recorded(path):
        write_json(record_of(path), {KEY: lines})


def require_recorded(path: Path) -> None:
    """Raise a StorageError if a recorded line is missing; without a file or a record, nothing is required."""
    if not path.exists():
        return
    recorded = {*_recorded(path)}  # before the lines, of which another process may add one
    missing = len(recorded.difference(_digests(path))) if recorded else 0
    if missing:
        lines, record = "a line" if missing == 1 else f"{missing} lines", record_of(path).name
        raise StorageError(
            f"{path} lacks {lines} that it had by {record}; restore the file, or remove {record} and run the "
            "same command, which does again what is missing"
        )


def forget_lines(path: Path) -> None:
    """Remove the record of a file that is gone: to remove it is how all its results are made again."""
    if record_of(path).exists() and not path.exists():
        record_of(path).unlink()


def split_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, and what follows the last line end: it was torn by a crash."""
    try:
        return read_bounded(path).split(b"\n")
    except UnreadableFileError as error:
        raise StorageError(str(error)) from None


def _recorded(path: Path) -> list[str]:
    record = record_of(path)
    if not record.exists():
        return []
    lines = read_json_object(record).get(KEY)
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise StorageError(f"{record} must have a list of texts as `{KEY}`; remove it")
    return lines


def _digests(path: Path) -> Iterator[str]:
    """Yield the SHA-256 of the content of each whole line that is a JSON object."""
    for line in split_lines(path)[:-1]:
        try:
            value = parse_json(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield content_digest(value)


Row = TypeVar("Row", bound=ResultRow)


@dataclass(frozen=True)
class ReadLines(Generic[Row]):
    """The rows of a file, and what to tell about each line that is none."""

    rows: list[Row]
    left_out: list[str]


def append_row(path: Path, row: ResultRow) -> None:
    """Add one row with the SHA-256 of its content; it is on disk when this returns.

    Processes that do so at once wait for each other.

    Raises:
        StorageError: A line that was written before is missing.
    """
    with open(path, "a", encoding="utf-8", opener=regular_only) as file:
        lock_descriptor(file.fileno())
        _drop_torn_line(path)
        require_recorded(path)
        file.write(json.dumps(seal(row.to_json()), ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
        record_lines(path)


def read_rows(path: Path, kind: type[Row]) -> ReadLines[Row]:
    """Return the rows of a file in their order, and the reason for each line that is left out.

    Lines are left out that are not JSON, that are not as they were written, that lack what a row needs, that
    repeat an earlier row, or that are of another task than the first. It is also told if lines are missing.
    """
    rows, left_out = [], []
    if path.exists() and (torn := split_lines(path)[-1]):
        left_out.append(
            f"the end of {path.name} is left out: its last line, of {len(torn)} bytes, is being written, or "
            "was torn by a kill; the same command writes it again"
        )
    for number, found in _lines(path, kind):
        if isinstance(found, str):
            left_out.append(f"line {number} of {path.name} is left out: {found}")
        else:
            rows.append(found)
    try:
        require_recorded(path)
    except StorageError as error:
        left_out.append(str(error))
    return ReadLines(rows, left_out)


def require_rows(path: Path, kind: type[Row], task: Task | None = None) -> list[Row]:
    """Return the rows of a file that is to be continued, in their order.

    Args:
        path: The file.
        kind: Of the rows.
        task: Of all rows that have one; that of the first if None.

    Raises:
        StorageError: A line is not such a row, or is missing.
    """
    rows = []
    for number, found in _lines(path, kind, task):
        if isinstance(found, str):
            raise StorageError(f"line {number} of {path} cannot be used: {found}")
        rows.append(found)
    require_recorded(path)
    return rows


def put_in_order(path: Path, kind: type[Row], order: Sequence[Hashable]) -> None:
    """Put the rows of a file in the order of these keys, and others behind them; no process may add one.

    All of them are recorded then, also one that a killed process had no time to record.

    Raises:
        StorageError: A line is not such a row, or is missing.
    """
    keys = [row.key for row in require_rows(path, kind)]
    places = {key: place for place, key in enumerate(order)}
    wanted = sorted(range(len(keys)), key=lambda number: places.get(keys[number], len(places)))
    if wanted != list(range(len(keys))):
        lines = split_lines(path)
        write_text(path, "".join(f"{lines[number].decode()}\n" for number in wanted))
    if keys:
        record_lines(path)


def unsealed_lines(path: Path) -> list[int]:
    """Return the numbers of the lines of a file that state no SHA-256; all of them must be rows."""
    lines = split_lines(path)[:-1]
    return [number for number, line in enumerate(lines, 1) if not is_sealed(parse_json(line))]


def _lines(path: Path, kind: type[Row], task: Task | None = None) -> Iterator[tuple[int, Row | str]]:
    """Yield the number of each whole line and its row, or why it has none."""
    if not path.exists():
        return
    first: dict[Hashable, int] = {}
    for number, line in enumerate(split_lines(path)[:-1], 1):
        found = _parse(line, kind)
        if isinstance(found, ResultRow) and first.setdefault(found.key, number) != number:
            yield number, f"it repeats line {first[found.key]}; remove that line"
        elif isinstance(found, MeasuredRow) and found.task != (task := task or found.task):
            yield number, f"its task is {found.task}, and that of the file {task}; {kind.remedy}"
        else:
            yield number, found


def _parse(line: bytes, kind: type[Row]) -> Row | str:
    try:
        value = parse_json(line)
    except (ValueError, RecursionError) as error:
        return f"it must be JSON, but {error}; remove that line"
    try:
        return kind.from_json(unseal(value) if isinstance(value, dict) else value)
    except BrokenSealError as error:
        return f"{error}; otherwise {kind.remedy}"
    except LaterVersionError as error:
        return str(error)
    except FieldError as error:
        older = "; it may come from an older version of pfge" if _has_no_version(value) else ""
        return f"{error}{older}; {kind.remedy}"


def _has_no_version(value: Any) -> bool:
    return isinstance(value, dict) and "version" not in value


def _drop_torn_line(path: Path) -> None:
    data = read_bounded(path)
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
