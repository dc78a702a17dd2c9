"""Rows of results by name: the start w0, a method, or the last members of a method (`FGE*`)."""

from collections.abc import Iterable

from pfge.methods.method import Method, TrainingPlan
from pfge.methods.table import METHODS
from pfge.schedules import Schedule

START = "w0"
"""The row of the start weights, which is there without being asked for."""
_STAR = "*"


def starred(name: str) -> str:
    """Return the row of the last members of a method.

    >>> starred("FGE")
    'FGE*'
    """
    return name + _STAR


def is_starred(row: str) -> bool:
    """Return whether a row is of the last members of a method."""
    return row.endswith(_STAR)


def base_of(row: str) -> str:
    """Return the name of the method that a row belongs to.

    >>> base_of("FGE*"), base_of("FGE")
    ('FGE', 'FGE')
    """
    return row.removesuffix(_STAR)


def method_of(row: str) -> Method | None:
    """Return the method that a row belongs to; None for w0, and for rows that the table does not know."""
    return METHODS.get(base_of(row))


def known_rows() -> list[str]:
    """Return the rows that a config can ask for, in the order of tables."""
    return [
        row
        for method in METHODS.values()
        for row in ((method.name, starred(method.name)) if method.starred else (method.name,))
    ]


def row_order(rows: Iterable[str]) -> list[str]:
    """Return rows in the order of tables: w0, those of the table of methods, then others in their own."""
    found = list(rows)
    known = [START, *known_rows()]
    return [row for row in known if row in found] + [row for row in found if row not in known]


def schedule_of(row: str, setting: TrainingPlan) -> Schedule:
    """Return the learning rate that a row's members were made with; the shared one if it is not known."""
    method = method_of(row)
    return method.schedule(setting) if method else setting.schedule()
