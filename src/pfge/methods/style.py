"""How a method looks in figures: a color that is safe for the color-blind, and a mark."""

from dataclasses import dataclass
from typing import Literal

Mark = Literal[
    "circle", "square", "diamond", "up", "down", "left", "right", "hexagon", "star", "cross", "plus"
]


@dataclass(frozen=True)
class Style:
    """How one method looks in every figure and table.

    Attributes:
        light: Its color on a light page.
        dark: Its color on a dark page.
        mark: The shape of its points.
        open: Whether that is only an outline.
        strong: Whether it is emphasized: bold in tables, with thicker lines and larger marks in figures.
    """

    light: str
    dark: str
    mark: Mark
    open: bool = False
    strong: bool = False


NEUTRAL = Style("#6b7280", "#9aa4b2", "plus")
SPARE = (
    Style("#8a4b2a", "#c98a66", "up", open=True),
    Style("#5b4bb0", "#a99cf0", "down", open=True),
    Style("#6a7b00", "#b3c73d", "right", open=True),
    Style("#9c1f2e", "#e0707c", "star", open=True),
)
"""For methods without a style of their own."""
