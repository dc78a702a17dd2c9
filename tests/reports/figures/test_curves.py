"""The figure of connectivity: whole SVG, and lines where the numbers are."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfge.reports.figures.curves import HEIGHT, PANEL_HEIGHT, PANEL_WIDTH, TOP, WIDTH, draw_curves, ticks
from tests.reports.tables.test_connectivity import row

SVG = "{http://www.w3.org/2000/svg}"


def lines(svg: str, width: str) -> list[list[tuple[float, float]]]:
    """Return the points of every line of a width."""
    found = []
    for path in ET.fromstring(svg).iter(f"{SVG}path"):
        if path.get("stroke-width") == width and "L" in path.get("d", ""):
            pairs = [point.split() for point in path.get("d", "").lstrip("M").split("L")]
            found.append([(float(x), float(y)) for x, y in pairs])
    return found


def test_a_line_goes_through_its_numbers() -> None:
    # Loss 1, 3, 2 on an axis from 1 to 3: the bottom, the top, the middle. Error 0, 50, 100 %: from 0 to 100.
    mean = lines(draw_curves([row("PFGE", [1, 3, 2], [0, 0.5, 1])]), "2.5")
    bottom = TOP + PANEL_HEIGHT
    assert mean[0] == [
        (60, bottom),
        (60 + PANEL_WIDTH / 2, TOP),
        (60 + PANEL_WIDTH, bottom - PANEL_HEIGHT / 2),
    ]
    left = 60 + PANEL_WIDTH + 70
    assert mean[1] == [
        (left, bottom),
        (left + PANEL_WIDTH / 2, bottom - PANEL_HEIGHT / 2),
        (left + PANEL_WIDTH, TOP),
    ]


def test_each_pair_is_a_thin_line_and_each_method_has_a_thick_one_in_both_panels() -> None:
    pairs = [row(method, [1, 2, 1], [0, 0.1, 0]) for method in ("PFGE", "PFGE", "FGE")]
    svg = draw_curves(pairs)
    assert len(lines(svg, "0.8")) == 2 * 3
    assert len(lines(svg, "2.5")) == 2 * 2


def test_the_thick_line_is_the_mean_of_the_thin_ones() -> None:
    svg = draw_curves([row("PFGE", [1, 2, 1], [0] * 3), row("PFGE", [1, 4, 3], [0] * 3)])
    (first, second), mean = lines(svg, "0.8")[:2], lines(svg, "2.5")[0]
    for one, two, middle in zip(first, second, mean, strict=True):
        assert middle[1] == pytest.approx((one[1] + two[1]) / 2, abs=0.11)  # rounded to a tenth


def test_the_axes_methods_and_panels_are_named() -> None:
    svg = draw_curves([row("PFGE", [1, 2, 1], [0, 0.1, 0]), row("A&B", [1, 2, 1], [0, 0.1, 0])])
    texts = [text.text for text in ET.fromstring(svg).iter(f"{SVG}text")]
    assert {"training loss", "test error, %", "t", "PFGE", "A&B", "0.25", "10"} <= set(texts)


@given(st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=3))
@settings(max_examples=30)
def test_nothing_is_outside_of_the_figure(losses: list[float]) -> None:
    for line in lines(draw_curves([row("PFGE", losses, [0, 0, 0])]), "2.5"):
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in line)


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
