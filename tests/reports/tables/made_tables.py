"""Tables that every renderer is tried on."""

from pfge.reports.tables.table import BEST, Cell, Count, Number, Row, Table, Text, columns

METHODS = Table(
    "any",
    "whatever it is called",
    columns("method", "bytes", "accuracy %"),
    [
        Row([Text("w0"), Count(1000), Number(90.0, 0.1, 2)], reference=True),
        Row([Text("PFGE"), Count(4000), Number(93.0, 0.2, 2, best=True)], emphasized=True),
    ],
    [BEST, "memory."],
)


def table(*cells: Cell) -> Table:
    return Table("t", "title", columns(*"abcdefgh"[: len(cells)]), [Row(cells)])
