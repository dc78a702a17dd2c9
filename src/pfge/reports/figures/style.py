"""How each method looks in every figure: a colour that is safe for the colour-blind, and a mark."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Mark = Literal["circle", "square", "diamond", "up", "down", "right", "star", "cross", "plus"]


@dataclass(frozen=True)
class Look:
    """One method's colour on a light and on a dark page, its mark, and whether that is only an outline."""

    light: str
    dark: str
    mark: Mark
    open: bool = False


NEUTRAL = Look("#6b7280", "#9aa4b2", "plus")

# The palette of Okabe and Ito; yellow is darkened on white paper, and black is white on dark.
_KNOWN = {
    "w0": NEUTRAL,
    "SWA": Look("#c98500", "#e69f00", "up"),
    "EMA": Look("#3f9bd1", "#56b4e9", "down"),
    "FGE": Look("#0072b2", "#4ea3dd", "square"),
    "FGE*": Look("#0072b2", "#4ea3dd", "square", open=True),
    "SWAG": Look("#00886a", "#1fb892", "diamond"),
    "SWAG*": Look("#00886a", "#1fb892", "diamond", open=True),
    "PFGE": Look("#d55e00", "#ff7f2a", "circle"),
    "Snapshot": Look("#b7588a", "#dd8fbb", "right"),
    "MCDropout": Look("#8f8400", "#f0e442", "cross"),
    "DeepEnsemble": Look("#1f2430", "#f2f4f8", "star"),
}
_OTHERS = (
    Look("#8a4b2a", "#c98a66", "up", open=True),
    Look("#5b4bb0", "#a99cf0", "down", open=True),
    Look("#6a7b00", "#b3c73d", "right", open=True),
    Look("#9c1f2e", "#e0707c", "star", open=True),
)


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """Return the look of each method; those that the paper does not know share the looks that are left."""
    unknown = [method for method in methods if method not in _KNOWN]
    return {method: _KNOWN.get(method) or _OTHERS[unknown.index(method) % len(_OTHERS)] for method in methods}
