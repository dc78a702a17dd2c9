"""A table as HTML; every text is escaped here."""

from collections.abc import Sequence
from html import escape

from pfge.reports.tables.cells import Cell, Interval, Number
from pfge.reports.tables.table import Column, Row, Table, is_best

WIDE = 4
"""A table of more columns is shown as cards on a narrow screen, each cell under the head of its column."""


def to_html(table: Table) -> str:
    """Return a table without its title and note, the best of each metric strong, rows for reference apart."""
    head = "".join(
        f'<th{_class("text" if column.align == "left" else "")} scope="col">{escape(column.head)}</th>'
        for column in table.columns
    )
    rows = [row for row in table.rows if not row.reference]
    references = [row for row in table.rows if row.reference]
    bodies = f"<tbody>{_rows(rows, table.columns)}</tbody>" if rows else ""
    if references:
        title = f'<tr><th colspan="{len(table.columns)}">For reference</th></tr>'
        bodies += f'<tbody class="reference">{title}{_rows(references, table.columns)}</tbody>'
    wide = _class("wide" if len(table.columns) > WIDE else "")
    return f'<div class="scroll"><table{wide}><thead><tr>{head}</tr></thead>{bodies}</table></div>'


def _rows(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    return "".join(
        ('<tr class="strong">' if row.emphasized else "<tr>")
        + "".join(_cell(cell, column) for cell, column in zip(row.cells, columns, strict=True))
        + "</tr>"
        for row in rows
    )


def _cell(cell: Cell, column: Column) -> str:
    text = escape(str(cell))
    shown = f"<strong>{text}</strong>" if is_best(cell) else text
    kind = "number" if isinstance(cell, Number | Interval) else "text" if column.align == "left" else ""
    return f'<td{_class(kind)} data-head="{escape(column.head)}">{shown}</td>'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
