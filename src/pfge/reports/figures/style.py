"""How each method looks in every figure: a colour that is safe for the colour-blind, and a mark."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Mark = Literal["circle", "square", "diamond", "up", "down", "right", "star", "cross", "plus"]


@dataclass(frozen=True)
class Style:
    """One method's colour on a light and on a dark page, its mark, and whether that is only an outline."""

    light: str
    dark: str
    mark: Mark
    open: bool = False


NEUTRAL = Style("#6b7280", "#9aa4b2", "plus")

# The palette of Okabe and Ito; yellow is darkened on white paper, and black is white on dark.
_KNOWN = {
    "w0": NEUTRAL,
    "SWA": Style("#c98500", "#e69f00", "up"),
    "EMA": Style("#3f9bd1", "#56b4e9", "down"),
    "FGE": Style("#0072b2", "#4ea3dd", "square"),
    "FGE*": Style("#0072b2", "#4ea3dd", "square", open=True),
    "SWAG": Style("#00886a", "#1fb892", "diamond"),
    "SWAG*": Style("#00886a", "#1fb892", "diamond", open=True),
    "PFGE": Style("#d55e00", "#ff7f2a", "circle"),
    "Snapshot": Style("#b7588a", "#dd8fbb", "right"),
    "MCDropout": Style("#8f8400", "#f0e442", "cross"),
    "DeepEnsemble": Style("#1f2430", "#f2f4f8", "star"),
}
_OTHERS = (
    Style("#8a4b2a", "#c98a66", "up", open=True),
    Style("#5b4bb0", "#a99cf0", "down", open=True),
    Style("#6a7b00", "#b3c73d", "right", open=True),
    Style("#9c1f2e", "#e0707c", "star", open=True),
)


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """Return the style of each method; those that the paper does not know share the looks that are left."""
    unknown = [method for method in methods if method not in _KNOWN]
    return {method: _KNOWN.get(method) or _OTHERS[unknown.index(method) % len(_OTHERS)] for method in methods}
