"""A table as HTML; every text is escaped here."""

from collections.abc import Sequence
from html import escape

from pfge.reports.tables.cells import Cell
from pfge.reports.tables.table import Row, Table, is_best


def to_html(table: Table) -> str:
    """Return a table without its title and note, the best of each metric strong, rows for reference apart."""
    head = "".join(f'<th scope="col">{escape(column.head)}</th>' for column in table.columns)
    rows = [row for row in table.rows if not row.reference]
    references = [row for row in table.rows if row.reference]
    bodies = f"<tbody>{_rows(rows)}</tbody>" if rows else ""
    if references:
        title = f'<tr><th colspan="{len(table.columns)}">For reference</th></tr>'
        bodies += f'<tbody class="reference">{title}{_rows(references)}</tbody>'
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{bodies}</table></div>'


def _rows(rows: Sequence[Row]) -> str:
    return "".join(
        ('<tr class="strong">' if row.emphasized else "<tr>")
        + "".join(f"<td>{_cell(cell)}</td>" for cell in row.cells)
        + "</tr>"
        for row in rows
    )


def _cell(cell: Cell) -> str:
    text = escape(str(cell))
    return f"<strong>{text}</strong>" if is_best(cell) else text
