"""The figure of a loss plane."""

from typing import Any
from xml.etree import ElementTree

import pytest

from pfge.lab.run.results import Landscape
from pfge.reports.figures.landscape import LEFT, SIDE, TOP, draw_landscape, ticks

FOUND: dict[str, Any] = {
    "seed": 1,
    "members": [1, 2, 3],
    "quantity": "train_loss",
    "images": 100,
    "x": [0.0, 1.0, 2.0],
    "y": [-1.0, 0.0, 1.0],
    "values": [[1.0, 2.0, 3.0], [0.5, 0.1, 2.0], [1.0, 2.0, 4.0]],
    "w0": [0.5, 0.5],
    "pfge": [[0.0, 0.0], [1.0, 0.0], [2.0, 1.0]],
    "means": {"SWA": [1.0, 0.5]},
    "trajectory": [[0.5, 0.4], [0.6, 0.3]],
    "curves": [[[0.0, 0.0], [0.5, -0.5], [1.0, 0.0]]],
}
SVG = "{http://www.w3.org/2000/svg}"


def drawn(**changes: Any) -> ElementTree.Element:
    return ElementTree.fromstring(draw_landscape(Landscape.from_json(FOUND | changes)))


def texts(figure: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in figure.iter(f"{SVG}text")]


def test_a_member_is_where_its_coordinates_are() -> None:
    circles = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in drawn().iter(f"{SVG}circle")]
    assert (LEFT, TOP + SIDE / 2) in circles  # (0, 0): at the left edge, half-way up
    assert (LEFT + SIDE, TOP) in circles  # (2, 1): the upper right corner


def test_the_lowest_cell_is_the_darkest() -> None:
    cells = list(drawn().find(f"{SVG}g").iter(f"{SVG}rect"))  # type: ignore[union-attr]
    assert len(cells) == 64  # four times four for each of the grid's four cells

    def brightness(cell: ElementTree.Element) -> int:
        return sum(bytes.fromhex((cell.get("fill") or "").removeprefix("#")))

    darkest = min(cells, key=brightness)
    x, y = float(darkest.get("x", 0)), float(darkest.get("y", 0))
    assert abs(x + SIDE / 16 - (LEFT + SIDE / 2)) <= SIDE / 8  # 0.1 is in the middle
    assert abs(y + SIDE / 16 - (TOP + SIDE / 2)) <= SIDE / 8


def test_everything_that_is_drawn_is_named() -> None:
    named = texts(drawn())
    for name in ("w0", "SWA", "1", "2", "3", "members of PFGE", "trajectory", "fitted curve"):
        assert name in named
    without = texts(drawn(curves=[], trajectory=[]))
    assert "fitted curve" not in without
    assert "trajectory" not in without


def test_it_has_a_text_alternative() -> None:
    assert drawn().get("aria-label") == "training loss from 0.1 to 4 on the plane through members 1, 2, 3"


def test_a_flat_plane_can_be_drawn() -> None:
    assert drawn(values=[[0.0] * 3] * 3) is not None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.5, 1]),
        (0.0012, 0.00148, [0.0012, 0.0013, 0.0014, 0.0015]),
        (3, 17, [0, 5, 10, 15, 20]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (2, 2, [1.5, 2, 2.5]),
    ],
)
def test_ticks_are_round_and_include_the_range(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)
