"""How methods look: colors, marks, and which rows, figures and comparisons show them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from pfge.methods import METHODS, START, base_of, is_starred

Mark = Literal[
    "circle", "square", "diamond", "up", "down", "left", "right", "hexagon", "star", "cross", "plus"
]


@dataclass(frozen=True)
class Style:
    """How one method looks in every figure and table.

    Attributes:
        light: Color on a light page.
        dark: Color on a dark page.
        mark: Shape of its points.
        open: Whether points are outlines.
        strong: Whether it is emphasized: bold in tables, with thicker lines and larger marks in figures.
    """

    light: str
    dark: str
    mark: Mark
    open: bool = False
    strong: bool = False


@dataclass(frozen=True)
class Appearance:
    """How reports show a method. A method without an entry in `APPEARANCES` has the defaults.

    Attributes:
        style: Colors and marks; None for one of the spare styles.
        rival: Name of the method that the report's claim compares it with: as good, in far less memory.
        for_reference: Whether its row is apart from the others, because it needs many times their memory.
        shows_members: Whether a figure shows its members one by one, against the iteration.
        rates_title: Title of its panel in the figure of learning rates; "" for no panel.
    """

    style: Style | None = None
    rival: str = ""
    for_reference: bool = False
    shows_members: bool = False
    rates_title: str = ""


# Colors are the palette of Okabe and Ito. Yellow is darkened on a light page, and black is white on a dark
# one.
APPEARANCES: dict[str, Appearance] = {
    "SWA": Appearance(Style("#c98500", "#e69f00", "up")),
    "EMA": Appearance(Style("#3f9bd1", "#56b4e9", "down")),
    "FGE": Appearance(
        Style("#0072b2", "#4ea3dd", "square"),
        for_reference=True,
        shows_members=True,
        rates_title="a member each cycle",
    ),
    "SWAG": Appearance(Style("#00886a", "#1fb892", "diamond"), for_reference=True),
    "PFGE": Appearance(
        Style("#d55e00", "#ff7f2a", "circle", strong=True),
        rival="FGE",
        shows_members=True,
        rates_title="an average each cycle, a member each period",
    ),
    "Snapshot": Appearance(Style("#b7588a", "#dd8fbb", "right"), rates_title="a member each annealing"),
    "Star": Appearance(Style("#6b4fa0", "#a98fe0", "left"), rates_title="a member each annealing, from w0"),
    "Cosine": Appearance(Style("#7a7a7a", "#b5b5b5", "hexagon")),
    "MCDropout": Appearance(Style("#8f8400", "#f0e442", "cross")),
    "TTA": Appearance(Style("#a05a2c", "#d9a066", "plus")),
    "DeepEnsemble": Appearance(Style("#1f2430", "#f2f4f8", "star")),
}
"""Appearances by method name. A registered method without an entry has the defaults; add one to choose."""

DEFAULT = Appearance()
NEUTRAL = Style("#6b7280", "#9aa4b2", "plus")
SPARE = (
    Style("#8a4b2a", "#c98a66", "up", open=True),
    Style("#5b4bb0", "#a99cf0", "down", open=True),
    Style("#6a7b00", "#b3c73d", "right", open=True),
    Style("#9c1f2e", "#e0707c", "star", open=True),
)
"""Styles for methods without one."""


def appearance_of(row: str) -> Appearance:
    """Return how reports show the method of a row; the defaults for w0 and for unknown methods.

    >>> appearance_of("FGE*").shows_members, appearance_of("mine").shows_members
    (True, False)
    """
    return APPEARANCES.get(base_of(row), DEFAULT)


def is_for_reference(row: str) -> bool:
    """Return whether a row stands apart from the others: w0, or a method that needs much memory."""
    return row == START or (row in METHODS and appearance_of(row).for_reference)


def style_of(row: str) -> Style:
    """Return how a row looks: the style of its method, with open marks for last members, or a neutral one."""
    style = appearance_of(row).style
    if style is None:
        return NEUTRAL
    return replace(style, open=True) if is_starred(row) else style


def styles(rows: Iterable[str]) -> dict[str, Style]:
    """Return the style of each row; rows without one share the spare styles."""
    found = {row: style_of(row) for row in rows}
    without = [row for row, style in found.items() if style is NEUTRAL and row != START]
    return found | {row: SPARE[number % len(SPARE)] for number, row in enumerate(without)}
