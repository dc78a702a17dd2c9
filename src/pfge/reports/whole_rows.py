"""Which lines of results a report can use: other versions may write others, and people edit them."""

from math import isfinite
from typing import Any

METRICS = ("accuracy", "nll", "ece")
COUNTS = ("members", "bytes", "bytes_of_one")


def whole_rows(results: list[Any], part: str = "test") -> list[dict[str, Any]]:
    """Return the results that have all that every table needs."""
    return [row for row in results if isinstance(row, dict) and _is_whole(row, part)]


def _is_whole(row: dict[str, Any], part: str) -> bool:
    metrics = row.get(part)
    return (
        isinstance(row.get("method"), str)
        and all(type(row.get(key)) is int for key in ("seed", "iterations", *COUNTS))
        and all(row[key] > 0 for key in COUNTS)
        and isinstance(metrics, dict)
        and all(_is_finite(metrics.get(key)) for key in METRICS)
    )


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value)
