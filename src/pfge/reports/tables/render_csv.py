"""A table as comma-separated values, for programs."""

import csv
import io

from pfge.reports.tables.cells import Cell, Count, Interval, Missing, Number, Ratio, Text
from pfge.reports.tables.table import Table

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
