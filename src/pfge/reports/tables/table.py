"""A table as text, whatever it is shown in."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A title, the heads of the columns, the cells, and a note under it."""

    title: str
    columns: Sequence[str]
    cells: list[list[str]]
    note: str
