"""A table as Markdown."""

import re
from collections.abc import Iterable

from pfge.reports.printable import printable
from pfge.reports.tables.cells import Cell
from pfge.reports.tables.table import Table, is_best

BEST = "▲"


def to_markdown(table: Table, heading: str = "") -> str:
    """Return a table with its note, under a heading if one is given."""
    lines = [
        _line(_escape(column.head) for column in table.columns),
        _line("---" if column.align == "left" else "---:" for column in table.columns),
        *(_line(map(_cell, row.cells)) for row in table.rows),
    ]
    parts = (f"## {_escape(heading)}" if heading else "", "\n".join(lines), table.note(f"{BEST} best"))
    return "\n\n".join(filter(None, parts))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    return _escape(str(cell)) + (f" {BEST}" if is_best(cell) else "")


def _escape(text: str) -> str:
    """Return a text in one line, without what would end a cell or begin emphasis, code, markup or a link."""
    return re.sub(r"([\\*|<`\[\]])", r"\\\1", printable(" ".join(text.split())))
