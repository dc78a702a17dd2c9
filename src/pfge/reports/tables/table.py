"""Tables as values, and as HTML, LaTeX, Markdown, CSV and text in a terminal."""

import csv
import io
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from html import escape as escape_html
from typing import Literal

from rich import table as rich_table
from rich.console import Console
from rich.markup import escape as escape_markup

from pfge.errors import InvalidValueError
from pfge.methods import find_reference
from pfge.reports.appearance import style_of
from pfge.reports.printable import printable
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
    """A placeholder in notes: each renderer replaces it by its own mark of the best number."""


BEST = BestMark()
LAST_MEMBERS = f"* the last members, as many as {find_reference().name} has"


@dataclass(frozen=True)
class Column:
    """A column.

    Args:
        head: Name for people.
        name: Name for programs, unique in a table; "" for the head.
        align: Side on which cells are aligned.
    """

    head: str
    name: str = ""
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Row:
    """A row.

    Args:
        cells: One cell for each column.
        emphasized: Whether the row is shown in bold.
        reference: Whether the row only serves to judge the others by, and may stand apart from them.
        folded: Whether a page shows it only on request, because another row is better and not larger.
    """

    cells: Sequence[Cell]
    emphasized: bool = False
    reference: bool = False
    folded: bool = False


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        key: Short name, for programs.
        title: Title for people.
        columns: Head and alignment of each column.
        rows: Rows from top to bottom.
        notes: Notes for readers; one of them may be `BEST`.
        subject: Name of the one ensemble that it describes; "" if it compares methods.
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
        seeds: All seeds with results.
    """
    if not ranked:
        return ["no number is marked as the best, as no seed has results of all methods yet"]
    if ranked == seeds:
        return [BEST]
    return [BEST, f"ranked by {name_seeds(ranked)}, which all methods have"]


def is_best(cell: Cell) -> bool:
    """Return whether a cell is the best of its column."""
    return isinstance(cell, Number) and cell.best


FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a text that begins with one of these for a formula."""


def to_csv(table: Table) -> str:
    """Return a table in which each number has a column of its own, under a name that is there once."""
    columns = [
        (column.name or column.head, [_values(row.cells[index]) for row in table.rows])
        for index, column in enumerate(table.columns)
    ]
    parts = [[*dict.fromkeys(part for cell in cells for part in cell)] or [""] for _, cells in columns]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        f"{name} {part}".rstrip() for (name, _), of in zip(columns, parts, strict=True) for part in of
    )
    for index in range(len(table.rows)):
        writer.writerow(
            cells[index].get(part, "") for (_, cells), of in zip(columns, parts, strict=True) for part in of
        )
    return out.getvalue()


def _values(cell: Cell) -> dict[str, str]:
    """Return the numbers of a cell by what their column adds to the name of the cell's."""
    match cell:
        case Text(text):
            return {"": f"'{text}" if text.startswith(FORMULA) else text}
        case Number(value, error, digits):
            of_error = {} if error is None else {"standard error": f"{error:.{digits}f}"}
            return {"": f"{value:.{digits}f}", **of_error}
        case Interval(low, high, digits):
            return {"low": f"{low:.{digits}f}", "high": f"{high:.{digits}f}"}
        case Count(value, note):
            return {"": str(value), **({"note": note} if note else {})}
        case Ratio(value, digits):
            return {"": f"{value:.{digits}g}"}
        case Missing():
            return {}


WIDE = 4
"""A table of more columns is shown as cards on a narrow screen, each cell under the head of its column."""


def to_html(table: Table) -> str:
    """Return a table without its title and note, the best of each metric strong, rows for reference apart.

    An interval stands below the number that it belongs to, in one column, so that wide tables fit a page.
    """
    shown = [index for index in range(len(table.columns)) if not _is_of_intervals(table, index)]
    head = "".join(_head(table, index) for index in shown)
    rows = [row for row in table.rows if not row.reference]
    references = [row for row in table.rows if row.reference]
    bodies = f"<tbody>{_rows(rows, table, shown)}</tbody>" if rows else ""
    if references:
        title = f'<tr><th colspan="{len(shown)}">For reference</th></tr>'
        bodies += f'<tbody class="reference">{title}{_rows(references, table, shown)}</tbody>'
    wide = _class("wide" if len(shown) > WIDE else "")
    return f'<div class="scroll"><table{wide}><thead><tr>{head}</tr></thead>{bodies}</table></div>'


def _is_of_intervals(table: Table, index: int) -> bool:
    """Return whether a column has intervals, and may be joined to the one before it."""
    return (
        index > 1 and bool(table.rows) and all(isinstance(row.cells[index], Interval) for row in table.rows)
    )


def _below(table: Table, index: int) -> int | None:
    """Return the column of the intervals of a column's numbers."""
    below = index + 1
    return below if below < len(table.columns) and _is_of_intervals(table, below) else None


def _head(table: Table, index: int) -> str:
    column, below = table.columns[index], _below(table, index)
    under = "" if below is None else f'<span class="below">{escape_html(table.columns[below].head)}</span>'
    text = _class("text" if column.align == "left" else "")
    return f'<th{text} scope="col">{escape_html(column.head)}{under}</th>'


def _rows(rows: Sequence[Row], table: Table, shown: Sequence[int]) -> str:
    return "".join(
        ('<tr class="strong">' if row.emphasized else "<tr>")
        + "".join(_html_cell(row, table, index) for index in shown)
        + "</tr>"
        for row in rows
    )


def _html_cell(row: Row, table: Table, index: int) -> str:
    cell, column, below = row.cells[index], table.columns[index], _below(table, index)
    text = _text(cell)
    shown = f"<strong>{text}</strong>" if is_best(cell) else text
    kind = "number" if isinstance(cell, Number | Interval) else "text" if column.align == "left" else ""
    under = "" if below is None else f'<span class="below">{_text(row.cells[below])}</span>'
    return f'<td{_class(kind)} data-head="{escape_html(column.head)}">{shown}{under}</td>'


def _text(cell: Cell) -> str:
    """Return the text of a cell; where it is too wide, the line breaks before the error of a number."""
    return escape_html(str(cell)).replace("± ", "±&nbsp;")


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


PREAMBLE = r"% These tables need \usepackage{booktabs} in the preamble."
"""A comment for the beginning of a file of tables."""


def to_latex(table: Table) -> str:
    """Return a table with the best of each metric in bold, and the rows for reference apart."""
    groups = [[row for row in table.rows if row.reference is apart] for apart in (False, True)]
    body = "\n\\midrule\n".join(
        "\n".join(_latex_line(map(_latex_cell, row.cells)) for row in group) for group in groups if group
    )
    caption = f"{table.heading[:1].upper()}{table.heading[1:]}. {table.note('bold: best')}"
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape_latex(caption)}}}",
            rf"\begin{{tabular}}{{{''.join(column.align[0] for column in table.columns)}}}",
            r"\toprule",
            _latex_line(_escape_latex(column.head) for column in table.columns),
            r"\midrule",
            body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell) -> str:
    text = _escape_latex(str(cell))
    return rf"\textbf{{{text}}}" if is_best(cell) else text


def _escape_latex(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in " ".join(text.split()))


BEST_SIGN = "▲"


def to_markdown(table: Table, heading: str = "") -> str:
    """Return a table with its note, under a heading if one is given."""
    lines = [
        _markdown_line(_escape_markdown(column.head) for column in table.columns),
        _markdown_line("---" if column.align == "left" else "---:" for column in table.columns),
        *(_markdown_line(map(_markdown_cell, row.cells)) for row in table.rows),
    ]
    parts = (
        f"## {_escape_markdown(heading)}" if heading else "",
        "\n".join(lines),
        table.note(f"{BEST_SIGN} best"),
    )
    return "\n\n".join(filter(None, parts))


def _markdown_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: Cell) -> str:
    return _escape_markdown(str(cell)) + (f" {BEST_SIGN}" if is_best(cell) else "")


def _escape_markdown(text: str) -> str:
    """Return a text in one line, without what would end a cell or begin emphasis, code, markup or a link."""
    return re.sub(r"([\\*|<`\[\]])", r"\\\1", printable(" ".join(text.split())))


WIDTH = 140
"""Where the output is not a terminal."""


def print_table(table: Table, heading: str = "") -> None:
    """Print a table under its own heading or another."""
    note = table.note(f"{BEST_SIGN} best")
    drawn = rich_table.Table(
        title=_printable(heading or table.heading),
        caption=_printable(note) if note else None,
        caption_justify="left",
    )
    for index, column in enumerate(table.columns):
        is_prose = index > 0 and column.align == "left"
        drawn.add_column(_printable(column.head), justify=column.align, no_wrap=not is_prose)
    for row in table.rows:
        drawn.add_row(*map(_terminal_cell, row.cells), style="bold" if row.emphasized else "")
    console().print(drawn)


def console() -> Console:
    """Return the console that commands print to."""
    return Console(width=None if Console().is_terminal else WIDTH)


def _terminal_cell(cell: Cell) -> str:
    return _printable(f"{cell} {BEST_SIGN}" if is_best(cell) else str(cell))


def _printable(text: str) -> str:
    """Return a text in which no character can steer the terminal, and brackets are brackets."""
    return escape_markup(printable(text))
