"""Which lines a file of results has, in a file beside it, so that a line that goes missing is noticed.

A line is recorded after it is on disk. A kill between the two leaves a line that is not recorded, and never
the record of a line that was not written.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from pfge.storage.bounded_files import UnreadableFileError, read_bounded
from pfge.storage.files import StorageError, read_json_object, write_json
from pfge.storage.seals import content_digest

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
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield content_digest(value)
