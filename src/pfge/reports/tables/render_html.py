"""A table as HTML; every text is escaped here."""

from collections.abc import Sequence
from html import escape

from pfge.reports.tables.cells import Cell, Interval, Number
from pfge.reports.tables.table import Row, Table, is_best

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
    under = "" if below is None else f'<span class="below">{escape(table.columns[below].head)}</span>'
    text = _class("text" if column.align == "left" else "")
    return f'<th{text} scope="col">{escape(column.head)}{under}</th>'


def _rows(rows: Sequence[Row], table: Table, shown: Sequence[int]) -> str:
    return "".join(
        ('<tr class="strong">' if row.emphasized else "<tr>")
        + "".join(_cell(row, table, index) for index in shown)
        + "</tr>"
        for row in rows
    )


def _cell(row: Row, table: Table, index: int) -> str:
    cell, column, below = row.cells[index], table.columns[index], _below(table, index)
    text = _text(cell)
    shown = f"<strong>{text}</strong>" if is_best(cell) else text
    kind = "number" if isinstance(cell, Number | Interval) else "text" if column.align == "left" else ""
    under = "" if below is None else f'<span class="below">{_text(row.cells[below])}</span>'
    return f'<td{_class(kind)} data-head="{escape(column.head)}">{shown}{under}</td>'


def _text(cell: Cell) -> str:
    """Return the text of a cell; where it is too wide, the line breaks before the error of a number."""
    return escape(str(cell)).replace("± ", "±&nbsp;")


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
