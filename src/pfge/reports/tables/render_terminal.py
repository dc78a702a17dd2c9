"""A table in a terminal."""

from rich import table as rich_table
from rich.console import Console
from rich.markup import escape

from pfge.reports.printable import printable
from pfge.reports.tables.cells import Cell
from pfge.reports.tables.table import Table, is_best

BEST = "▲"
WIDTH = 140
"""Where the output is not a terminal."""


def print_table(table: Table, heading: str = "") -> None:
    """Print a table under its own heading or another."""
    note = table.note(f"{BEST} best")
    drawn = rich_table.Table(
        title=_printable(heading or table.heading),
        caption=_printable(note) if note else None,
        caption_justify="left",
    )
    for index, column in enumerate(table.columns):
        is_prose = index > 0 and column.align == "left"
        drawn.add_column(_printable(column.head), justify=column.align, no_wrap=not is_prose)
    for row in table.rows:
        drawn.add_row(*map(_cell, row.cells), style="bold" if row.emphasized else "")
    console().print(drawn)


def console() -> Console:
    """Return the console that commands print to."""
    return Console(width=None if Console().is_terminal else WIDTH)


def _cell(cell: Cell) -> str:
    return _printable(f"{cell} {BEST}" if is_best(cell) else str(cell))


def _printable(text: str) -> str:
    """Return a text in which no character can steer the terminal, and brackets are brackets."""
    return escape(printable(text))
