"""The figure of a loss plane: what it holds, and how matplotlib draws it."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfge.lab.run.results import Landscape
from pfge.reports.figures.figure import Figure, Panel
from pfge.reports.figures.path import plane
from pfge.reports.figures.plots import plot, save_figure
from tests.reports.made_run import LANDSCAPE


def figure(**changes: Any) -> Figure:
    found = plane(Landscape.from_json(LANDSCAPE | changes))
    assert found is not None
    return found


def panel(**changes: Any) -> Panel:
    (found,) = figure(**changes).panels
    return found


def points(found: Panel, label: str) -> list[tuple[float, float]]:
    (series,) = [series for series in found.series if series.label == label]
    return list(zip(series.x, series.y, strict=True))


def test_a_member_is_where_its_coordinates_are() -> None:
    found = panel()
    assert points(found, "members of PFGE") == [(0.0, 0.0), (1.0, 0.0), (2.0, 1.0)]
    assert points(found, "w0") == [(0.5, 0.5)]
    assert points(found, "SWA") == [(1.0, 0.5)]
    assert points(found, "trajectory") == [(0.5, 0.5), (0.5, 0.4), (0.6, 0.3)]  # it starts at w0
    assert points(found, "fitted curve") == [(0.0, 0.0), (0.5, -0.5), (1.0, 0.0)]


def test_the_grid_has_the_values_and_a_scale_from_the_lowest_to_the_highest() -> None:
    grid = panel().grid
    assert grid is not None
    assert grid.values == LANDSCAPE["values"]
    assert (grid.low, grid.high, grid.label) == (0.1, 4.0, "training loss")
    assert grid.ticks[0] == pytest.approx(0.1)
    assert grid.ticks[-1] == pytest.approx(4.0)
    distances = np.log([tick - grid.low + grid.offset for tick in grid.ticks])
    assert np.diff(distances) == pytest.approx([np.diff(distances)[0]] * 4)


def test_every_mark_has_a_name_on_the_plane_and_on_no_other_name() -> None:
    found = panel()
    assert [label.text for label in found.labels] == ["w0", "SWA", "1", "2", "3"]
    assert [label.method for label in found.labels] == ["w0", "SWA", "PFGE", "PFGE", "PFGE"]
    places = [label.place for label in found.labels]
    assert all(0 <= x <= 2 and -1 <= y <= 1 for x, y in places)
    # Letters are 8 by 14 on a plane of 380: 0.042 and 0.074 of these axes, which are 2 long.
    assert all(abs(x - u) > 0.042 or abs(y - v) > 0.073 for (x, y), (u, v) in combinations(places, 2))


def test_only_what_was_found_is_drawn() -> None:
    labels = [series.label for series in panel(curves=[], trajectory=[], pfge=[]).series]
    assert labels == ["w0", "SWA"]
    assert "evil" not in [series.label for series in panel(means={"evil": [1.0, 0.5]}).series]


def test_the_title_and_the_axes_name_the_quantity_and_the_members() -> None:
    found = panel()
    assert found.title == "training loss, plane through members 1, 2, 3"
    assert found.x_label == "distance from member 1 towards member 2"


def test_matplotlib_draws_the_values_where_they_are_and_every_series() -> None:
    drawn = plot(figure())
    axes, scale = drawn.axes
    (image,) = axes.get_images()
    assert np.asarray(image.get_array()).tolist() == LANDSCAPE["values"]
    left, right, bottom, top = image.get_extent()
    assert (left, right, bottom, top) == (-0.5, 2.5, -1.5, 1.5)  # grid points are the middles of cells
    assert (axes.get_xlim(), axes.get_ylim()) == ((0.0, 2.0), (-1.0, 1.0))
    assert image.norm(0.1) == pytest.approx(0)
    assert image.norm(4.0) == pytest.approx(1)
    # Half-way in the logarithm: the ratio of the distances from zero, which is 0.061, is 101.
    assert image.norm(0.061 + 0.039 * 101**0.5) == pytest.approx(0.5, abs=1e-6)
    assert {text.get_text() for text in drawn.legends[0].get_texts()} == {
        "trajectory",
        "fitted curve",
        "w0",
        "SWA",
        "members of PFGE",
    }
    assert [text.get_text() for text in axes.texts] == ["w0", "SWA", "1", "2", "3"]
    assert scale.get_yticklabels()[0].get_text() == "0.1"


def test_a_flat_plane_can_be_drawn() -> None:
    drawn = plot(figure(values=[[0.0] * 3] * 3))
    drawn.draw_without_rendering()
    assert len(drawn.axes) == 2


def test_a_plane_whose_values_hardly_differ_can_be_drawn() -> None:
    plot(figure(values=[[1.0, 1.0 + 3e-16, 1.0]] * 3)).draw_without_rendering()


def test_a_plane_becomes_a_file_without_a_warning(tmp_path: Path) -> None:
    save_figure(figure(), tmp_path / "plane.svg")
    assert "trajectory" in (tmp_path / "plane.svg").read_text()
