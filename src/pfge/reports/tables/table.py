"""Tables as values: cells, columns and rows."""

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

from pfge.errors import InvalidValueError
from pfge.methods import find_reference
from pfge.reports.appearance import style_of
from pfge.reports.statistics import Estimate, name_seeds
from pfge.tasks import Metric


@dataclass(frozen=True)
class Text:
    """Words."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Number:
    """A number, or a mean with its standard error.

    Args:
        value: The number.
        error: Its standard error, if it has one.
        digits: Decimals of both.
        signed: Whether a number above 0 has a sign.
        best: Whether it is the best of its column.
    """

    value: float
    error: float | None = None
    digits: int = 4
    signed: bool = False
    best: bool = False

    @classmethod
    def of(cls, estimate: Estimate, digits: int) -> "Number":
        """Return an estimate as a cell."""
        return cls(estimate.mean, estimate.error, digits)

    @classmethod
    def of_metric(cls, metric: Metric, estimate: Estimate, *, best: bool = False) -> "Number":
        """Return an estimate of a metric as a cell, in the unit of the metric."""
        scaled = estimate.scaled(metric.factor)
        return cls(scaled.mean, scaled.error, metric.digits, best=best)

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.{self.digits}f}"
        return f"{self.value:{'+' if self.signed else ''}.{self.digits}f}{error}"


@dataclass(frozen=True)
class Interval:
    """Two ends, each with its sign."""

    low: float
    high: float
    digits: int = 4

    def __str__(self) -> str:
        return f"{self.low:+.{self.digits}f} to {self.high:+.{self.digits}f}"


@dataclass(frozen=True)
class Count:
    """A whole number, as of members or bytes, and a note if there is more to say."""

    value: int
    note: str = ""
    signed: bool = False

    def __str__(self) -> str:
        return f"{self.value:{'+' if self.signed else ''},}{f' ({self.note})' if self.note else ''}"


@dataclass(frozen=True)
class Ratio:
    """How many times as much, in so many significant digits."""

    value: float
    digits: int = 3

    def __str__(self) -> str:
        return f"{self.value:.{self.digits}g}x"


@dataclass(frozen=True)
class Missing:
    """Nothing, and why if that is worth saying."""

    why: str = ""

    def __str__(self) -> str:
        return self.why


Cell = Text | Number | Interval | Count | Ratio | Missing


class BestMark:
    """Stands in notes for what marks the best number of a column, which differs between renderers."""


BEST = BestMark()
LAST_MEMBERS = f"* the last members, as many as {find_reference().name} has"


@dataclass(frozen=True)
class Column:
    """A column.

    Args:
        head: For people.
        name: For programs, unique in a table; "" is the head.
        align: Where cells stand.
    """

    head: str
    name: str = ""
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Row:
    """A row.

    Args:
        cells: One for each column.
        emphasized: Whether it is the one that readers look for.
        reference: Whether it is there to judge the others by, and may stand apart from them.
        folded: Whether a page shows it only on request, as another row is better and no larger.
    """

    cells: Sequence[Cell]
    emphasized: bool = False
    reference: bool = False
    folded: bool = False


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        key: Its short name, for programs.
        title: What it shows.
        columns: What each cell of a row is.
        rows: From top to bottom.
        notes: How to read it; one of them may be `BEST`.
        subject: The one ensemble that it is of; "" if it is of all methods.
    """

    key: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str | BestMark] = ()
    subject: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise InvalidValueError(
                    f"a row of table {self.key} must have {len(self.columns)} cells, got {len(row.cells)}"
                )

    @property
    def heading(self) -> str:
        """The title with its subject."""
        return f"{self.subject}: {self.title}" if self.subject else self.title

    def only(self, names: Sequence[str]) -> "Table | None":
        """Return the table with its first column and those of some names; None if it has none of them.

        Args:
            names: How columns begin, in words: "nll" is for NLL, its interval and NLL at temperatures.
        """
        kept = [
            index
            for index, column in enumerate(self.columns)
            if index and any(_begins(column.name or column.head, name) for name in names)
        ]
        if not kept:
            return None
        rows = [replace(row, cells=[row.cells[index] for index in (0, *kept)]) for row in self.rows]
        return replace(self, columns=[self.columns[index] for index in (0, *kept)], rows=rows)

    def unfolded(self) -> "Table":
        """Return the table without its folded rows."""
        return replace(self, rows=[row for row in self.rows if not row.folded])

    def note(self, best: str) -> str:
        """Return the notes as a text, with a renderer's words for what marks the best number."""
        return "; ".join(best if isinstance(part, BestMark) else part for part in self.notes)


def _begins(text: str, name: str) -> bool:
    """Return whether the words of a text begin with those of a name, whatever their case."""
    words, wanted = (re.findall(r"[^\s,]+", part.lower()) for part in (text, name))
    return bool(wanted) and words[: len(wanted)] == wanted


def columns(first: str, *others: str) -> list[Column]:
    """Return columns by their heads: the first to the left, the others to the right."""
    return [Column(first, align="left"), *map(Column, others)]


def method_row(method: str, *cells: Cell, reference: bool = False) -> Row:
    """Return the row of a method, whose name is its first cell and whose style says if it is emphasized."""
    return Row([Text(method), *cells], style_of(method).strong, reference)


def best_notes(ranked: Set[int], seeds: Set[int]) -> list[str | BestMark]:
    """Return what notes say of the best numbers.

    Args:
        ranked: The seeds that methods were ranked by.
        seeds: All that there are.
    """
    if not ranked:
        return ["no number is marked as the best, as no seed has results of all methods yet"]
    if ranked == seeds:
        return [BEST]
    return [BEST, f"ranked by {name_seeds(ranked)}, which all methods have"]


def is_best(cell: Cell) -> bool:
    """Return whether a cell is the best of its column."""
    return isinstance(cell, Number) and cell.best
