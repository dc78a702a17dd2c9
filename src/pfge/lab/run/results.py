"""Results as lines of JSON: appended, never rewritten."""

import json
import os
from pathlib import Path
from typing import Any

from pfge.storage.files import StorageError


def append_result(path: Path, result: dict[str, Any]) -> None:
    """Add one result; it is on disk when this returns."""
    _drop_torn_line(path)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return all whole results, in the order in which they were appended."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")  # a torn line may end inside a character
    results = []
    for number, line in enumerate(lines[:-1], 1):  # what follows the last line end was torn by a crash
        try:
            results.append(json.loads(line))
        except ValueError as error:
            raise StorageError(
                f"line {number} of {path} must be JSON, but {error}; remove that line"
            ) from None
    return results


def _drop_torn_line(path: Path) -> None:
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
