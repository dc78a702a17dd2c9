"""Files of results, a line of JSON each: appended, never rewritten."""

import json
import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from filelock import lock_descriptor

from pfge.lab.run.line_records import record_lines, require_recorded, split_lines
from pfge.lab.run.results import MeasuredRow, ResultRow
from pfge.lab.run.typed_json import LaterVersionError, ResultError
from pfge.storage.files import StorageError, write_text
from pfge.storage.seals import BrokenSealError, is_sealed, seal, unseal
from pfge.tasks import Task

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
    with path.open("a", encoding="utf-8") as file:
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
    return [number for number, line in enumerate(lines, 1) if not is_sealed(json.loads(line))]


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
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"it must be JSON, but {error}; remove that line"
    try:
        return kind.from_json(unseal(value) if isinstance(value, dict) else value)
    except BrokenSealError as error:
        return f"{error}; otherwise {kind.remedy}"
    except LaterVersionError as error:
        return str(error)
    except ResultError as error:
        older = "; it may come from an older version of pfge" if _has_no_version(value) else ""
        return f"{error}{older}; {kind.remedy}"


def _has_no_version(value: Any) -> bool:
    return isinstance(value, dict) and "version" not in value


def _drop_torn_line(path: Path) -> None:
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
