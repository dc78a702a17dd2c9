"""Figures for papers: what is drawn is what the figure holds."""

import importlib
import sys
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from pfge.reports.appearance import styles
from pfge.reports.contents import report_figures
from pfge.reports.figures import path as figures
from pfge.reports.figures.figure import Figure, Panel, Series
from pfge.reports.figures.plots import plot, plot_members, plot_tradeoff, save_figure, save_figures
from pfge.reports.run import Run
from pfge.storage.files import StorageError
from tests.reports.made_run import MEMBERS, make_run, write_connectivity, write_evaluations, write_forms


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = make_run(tmp_path / "run")
    write_connectivity(folder)
    write_evaluations(folder)
    return Run(folder)


def test_every_series_is_drawn_with_its_points_and_its_methods_colour(run: Run) -> None:
    figure = figures.members(run)
    assert figure is not None
    drawn = plot_members(run.folder.path)
    for axes, panel in zip(drawn.axes, figure.panels, strict=True):
        for line, series in zip(axes.get_lines(), panel.series, strict=True):
            assert list(line.get_xdata()) == list(series.x)
            assert list(line.get_ydata()) == list(series.y)
            assert to_hex(line.get_color()) == styles([series.method])[series.method].light


@pytest.mark.slow
def test_no_figure_runs_latex_whatever_a_matplotlibrc_says(run: Run, tmp_path: Path) -> None:
    with mpl.rc_context({"text.usetex": True, "text.latex.preamble": r"\input{/etc/passwd}"}):
        drawn = plot_members(run.folder.path)
        assert not any(text.get_usetex() for text in drawn.findobj(Text))
        assert save_figures(report_figures(run), tmp_path)


def test_a_notebook_shows_a_figure_by_itself(run: Run) -> None:
    shown = plot_tradeoff(run.folder.path)._repr_png_()
    width, height = (int.from_bytes(shown[place : place + 4]) for place in (16, 20))
    assert shown.startswith(b"\x89PNG")
    assert (width, height) == (840, 360)  # two panels of 4.2 by 3.2 inches and the legend, at 100 dots each


def test_the_trade_off_has_a_log_axis_and_every_method_named(run: Run) -> None:
    drawn = plot_tradeoff(run.folder.path)
    assert [axes.get_xscale() for axes in drawn.axes] == ["log", "log"]
    (legend,) = drawn.legends
    assert {text.get_text() for text in legend.get_texts()} == {*MEMBERS, "Pareto front"}


def test_forms_stand_two_by_two_and_the_front_is_named_where_nothing_else_is(run: Run) -> None:
    write_forms(run.folder.path)
    drawn = plot_tradeoff(run.folder.path)
    assert drawn.get_size_inches().tolist() == [2 * 4.2, 2 * 3.2 + 0.4]
    drawn.draw_without_rendering()
    for axes in drawn.axes:
        window = axes.get_window_extent()
        boxes = [Text.get_window_extent(text) for text in axes.texts]  # without its line
        assert len(boxes) >= 5
        assert all(window.x0 <= box.x0 and box.x1 <= window.x1 for box in boxes)
        assert all(window.y0 <= box.y0 and box.y1 <= window.y1 for box in boxes)
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    (legend,) = drawn.legends
    assert {text.get_text() for text in legend.get_texts()} == {
        "Pareto front",
        *MEMBERS,
        *(f"{method}, compressed or cascade" for method in MEMBERS),
    }


@pytest.mark.slow
def test_every_figure_is_a_file_and_the_same_one_each_time(run: Run, tmp_path: Path) -> None:
    every = report_figures(run)
    assert [figure.name for figure in every] == [
        "tradeoff",
        "rates",
        "members",
        "curves",
        "reliability",
        "corruptions",
        "unknown-inputs",
    ]
    files = save_figures(every[:2], tmp_path / "once")
    again = save_figures(every[:2], tmp_path / "again")
    assert [file.name for file in files] == ["tradeoff.svg", "tradeoff.png", "rates.svg", "rates.png"]
    assert [file.read_bytes() for file in files] == [file.read_bytes() for file in again]
    assert sorted(tmp_path.glob("once/*")) == sorted(files)  # nothing half-written stays


def test_a_name_is_text_whatever_is_in_it(tmp_path: Path) -> None:
    name = r"<b>$\frac{1}$ & _"
    figure = Figure("odd", "Odd", "", [Panel("p", "x", "y", [Series(name, [1, 2], [1, 2], name)])])
    (svg, _) = save_figures([figure], tmp_path)
    assert r"&lt;b&gt;$\frac{1}$ &amp; _" in svg.read_text()


def test_a_notebook_is_told_what_is_missing(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path / "run", methods=["w0"]))
    with pytest.raises(StorageError, match="has no results of PFGE or FGE yet"):
        plot_members(run.folder.path)
    with pytest.raises(StorageError, match="has no results of any method yet"):
        plot_tradeoff(make_run(tmp_path / "empty", methods=[]))


def test_without_matplotlib_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pfge.reports.figures.plots")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "pfge\[figures\]"'):
        importlib.import_module("pfge.reports.figures.plots")


def test_methods_of_the_paper_look_different_from_each_other() -> None:
    known = styles([*MEMBERS, "EMA", "Snapshot", "MCDropout", "DeepEnsemble"])
    assert len({(look.mark, look.open) for look in known.values()}) == len(known)
    assert styles(["mine", "yours"])["mine"] != styles(["mine", "yours"])["yours"]


def test_pairs_are_thin_and_the_mean_of_a_method_is_thick_along_curves(run: Run) -> None:
    figure = figures.curves(run.connectivity)
    assert figure is not None
    loss, error = plot(figure).axes
    # Two pairs of PFGE, 1 and 3 high, and one of FGE; after the pairs of a method comes their mean.
    widths = {
        line.get_label(): line.get_linewidth() for line in loss.get_lines() if line.get_label()[0] != "_"
    }
    assert widths == {"FGE, mean of 1 pairs": 1.4, "PFGE, mean of 2 pairs": 2.0}
    assert [line.get_linewidth() for line in loss.get_lines()].count(0.7) == 3
    assert list(loss.get_lines()[-1].get_ydata()) == [0.0, 2.0, 0.0]
    assert list(error.get_lines()[-1].get_ydata()) == pytest.approx([10.0, 12.0, 10.0])


def test_one_figure_is_a_file_of_the_kind_that_its_name_says(run: Run, tmp_path: Path) -> None:
    figure = figures.curves(run.connectivity)
    assert figure is not None
    save_figure(figure, tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").read_text().startswith("<?xml")
    save_figure(figure, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
