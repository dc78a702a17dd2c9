"""The table of a comparison: each method's mean and standard error over seeds."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Any

from pfge.methods import row_order

COLUMNS = ("method", "members", "bytes", "memory", "accuracy %", "NLL", "ECE %", "iterations")
BEST = "▲"


@dataclass(frozen=True)
class Number:
    """A mean over seeds and its standard error, which one seed does not have."""

    mean: float
    error: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Number":
        """Summarise one value a seed."""
        return cls(mean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else None)

    def scaled(self, factor: float) -> "Number":
        """Return the number in another unit."""
        return Number(factor * self.mean, None if self.error is None else factor * self.error)

    def show(self, digits: int) -> str:
        """Return the number for a table."""
        error = "" if self.error is None else f" ± {self.error:.{digits}f}"
        return f"{self.mean:.{digits}f}{error}"


@dataclass(frozen=True)
class Row:
    """One method over all its seeds."""

    method: str
    members: int
    bytes: int
    relative_bytes: float
    accuracy: Number
    nll: Number
    ece: Number
    iterations: int
    trainings: int


def by_method(results: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the results of each method, in the order of tables."""
    found: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        found.setdefault(result["method"], []).append(result)
    return {name: found[name] for name in row_order(found)}


def summarize(results: Sequence[dict[str, Any]], part: str = "test") -> list[Row]:
    """Return a row for each method."""
    return [_row(method, rows, part) for method, rows in by_method(results).items()]


def comparison_cells(rows: Sequence[Row]) -> list[list[str]]:
    """Return the table's cells as text; the best of each metric is marked."""
    best = {
        "accuracy": max(row.accuracy.mean for row in rows),
        "nll": min(row.nll.mean for row in rows),
        "ece": min(row.ece.mean for row in rows),
    }

    def metric(row: Row, name: str, factor: float, digits: int) -> str:
        number: Number = getattr(row, name)
        return number.scaled(factor).show(digits) + (f" {BEST}" if number.mean == best[name] else "  ")

    return [
        [
            row.method,
            str(row.members),
            f"{row.bytes:,}",
            f"{row.relative_bytes:g}x",
            metric(row, "accuracy", 100, 2),
            metric(row, "nll", 1, 4),
            metric(row, "ece", 100, 2),
            f"{row.iterations:,}" + (f" ({row.trainings} trainings)" if row.trainings > 1 else ""),
        ]
        for row in rows
    ]


def to_markdown(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown, all but the first column to the right."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *cells]
    return "\n".join(
        "| " + " | ".join(re.sub(r"([\\*|<`])", r"\\\1", cell.strip()) for cell in line) + " |"
        for line in lines
    )


def _row(method: str, results: Sequence[dict[str, Any]], part: str) -> Row:
    first = results[0]
    numbers = {
        name: Number.of([result[part][name] for result in results]) for name in ("accuracy", "nll", "ece")
    }
    return Row(
        method=method,
        members=first["members"],
        bytes=first["bytes"],
        relative_bytes=first["bytes"] / first["bytes_of_one"],
        iterations=first["iterations"],
        trainings=first.get("trainings", 1),  # runs of an older version do not say
        **numbers,
    )
