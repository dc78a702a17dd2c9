"""Figures for papers and notebooks, drawn by matplotlib."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfge.reports.appearance import NEUTRAL, Style, styles
from pfge.reports.figures.figure import Figure, Grid, Label, Panel, Series
from pfge.reports.figures.path import members
from pfge.reports.figures.tradeoff import tradeoff
from pfge.reports.run import Run
from pfge.storage.files import StorageError, atomic_path

try:
    import matplotlib as mpl
    from matplotlib import figure as mpl_figure
    from matplotlib.axes import Axes
    from matplotlib.colors import FuncNorm, LinearSegmentedColormap
    from matplotlib.patheffects import withStroke
except ImportError as error:
    raise ImportError('figures need matplotlib; pip install "pfge[figures]"') from error

MARKS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "up": "^",
    "down": "v",
    "left": "<",
    "right": ">",
    "hexagon": "h",
    "star": "*",
    "cross": "X",
    "plus": "P",
}
COLUMNS = 3
AXES_WIDTH, AXES_HEIGHT = 250, 150
"""At least what a panel has for its points, in points of 1/72 inch; the layout is found after names are."""
NAME_SIZE, GAP = 6.5, 5
ATTEMPTS = 4
METADATA = {"svg": {"Date": None}, "png": {"Software": None}}
"""What is left out of each kind of file, so that the same figure is the same file."""
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "svg.hashsalt": "pfge",  # the same figure is the same file
    "svg.fonttype": "none",
    "text.parse_math": False,  # a method's name may hold a dollar
    "text.usetex": False,  # matplotlib reads a matplotlibrc in the current folder, perhaps a stranger's run
}


class Plot(mpl_figure.Figure):
    """A figure that notebooks show by themselves, whichever backend they have, or none."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        with mpl.rc_context(STYLE):
            self.savefig(out, format="png", dpi=100)
        return out.getvalue()


def plot(figure: Figure) -> Plot:
    """Return the figure drawn."""
    with mpl.rc_context(STYLE):
        columns = 2 if len(figure.panels) == 4 else min(COLUMNS, len(figure.panels))
        rows = -(-len(figure.panels) // columns)
        has_grid = any(panel.grid for panel in figure.panels)
        width, height = (5.6, 4.8) if has_grid else (4.2, 3.2)
        drawn = Plot(figsize=(width * columns, height * rows + 0.4), layout="constrained")
        by_method = styles(figure.methods)
        for place, panel in enumerate(figure.panels, 1):
            _draw(drawn.add_subplot(rows, columns, place), panel, by_method)
        named = [axes for axes in drawn.axes if axes.get_legend_handles_labels()[1]]
        if named:
            handles, labels = zip(
                *(pair for axes in named for pair in zip(*axes.get_legend_handles_labels(), strict=True)),
                strict=True,
            )
            unique = dict(zip(labels, handles, strict=True))
            drawn.legend(
                unique.values(),
                unique.keys(),
                loc="outside lower center",
                ncols=4,
                frameon=has_grid,
                facecolor="0.8",  # which shows the white line of a trajectory
            )
        return drawn


def save_figures(figures: Sequence[Figure], folder: Path, prefix: str = "") -> list[Path]:
    """Write every figure as SVG and as PNG, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for figure in figures:
        drawn = plot(figure)
        for suffix in METADATA:
            file = folder / f"{prefix}{figure.name}.{suffix}"
            _save(drawn, file)
            files.append(file)
    return files


def save_figure(figure: Figure, file: Path) -> None:
    """Write a figure in the format that the name of the file ends with."""
    _save(plot(figure), file)


def _save(drawn: Plot, file: Path) -> None:
    suffix = file.suffix.removeprefix(".")
    with atomic_path(file) as temporary, mpl.rc_context(STYLE):
        drawn.savefig(temporary, format=suffix, dpi=200, metadata=METADATA[suffix])


def _draw(axes: Axes, panel: Panel, by_method: Mapping[str, Style]) -> None:
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    for guide in panel.guides:
        axes.axvline(guide, color="0.85", linewidth=0.8, zorder=0)
    if panel.diagonal:
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=0.8, linestyle="--", zorder=0)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.grid:
        _draw_grid(axes, panel.grid)
    for series in panel.series:
        _draw_series(axes, series, by_method.get(series.method, NEUTRAL), on_grid=panel.grid is not None)
    if panel.x_ticks:
        places, names = zip(*panel.x_ticks, strict=True)
        axes.set_xticks(places, names)
        axes.minorticks_off()
    for series in panel.series:
        if series.named:
            _write_names(axes, series)
    for label in panel.labels:
        _write_label(axes, label)


def _draw_grid(axes: Axes, grid: Grid) -> None:
    """Draw the values as colors, filled in linearly, and the scale of colors beside them."""
    (left, right), (bottom, top) = ((axis[0], axis[-1]) for axis in (grid.x, grid.y))
    # An image shows a value in the middle of a cell, so it reaches half a cell beyond the grid.
    wide, high = (right - left) / (len(grid.x) - 1) / 2, (top - bottom) / (len(grid.y) - 1) / 2
    colors = [[channel / 255 for channel in color] for color in grid.colors]
    image = axes.imshow(
        grid.values,
        cmap=LinearSegmentedColormap.from_list("pfge", colors),
        norm=FuncNorm(
            (
                lambda value: np.log(np.maximum(value - grid.low, 0) + grid.offset),
                lambda share: np.exp(share) + grid.low - grid.offset,
            ),
            vmin=grid.low,
            vmax=max(grid.high, grid.low + grid.offset),
        ),
        extent=(left - wide, right + wide, bottom - high, top + high),
        origin="lower",
        interpolation="bilinear",
        interpolation_stage="data",
        aspect="auto",
    )
    axes.set(xlim=(left, right), ylim=(bottom, top), box_aspect=1, autoscale_on=False)
    scale = axes.figure.colorbar(image, ax=axes, label=grid.label, shrink=0.8)
    scale.ax.set_yticks(grid.ticks, [f"{value:.3g}" for value in grid.ticks])
    scale.ax.minorticks_off()


def _write_label(axes: Axes, label: Label) -> None:
    """Write a name in white with a dark outline, which every color of a grid shows."""
    axes.annotate(
        label.text,
        label.point,
        label.place,
        color="white",
        ha="center",
        va="center",
        fontsize=9,
        fontweight="bold",
        path_effects=[withStroke(linewidth=2, foreground="black")],
        arrowprops={"arrowstyle": "-", "linewidth": 0.6, "color": "white"},
    )


def _draw_series(axes: Axes, series: Series, style: Style, *, on_grid: bool = False) -> None:
    color = series.color or style.light
    weight = 2.0 if style.strong else 1.4
    axes.plot(
        series.x,
        series.y,
        label="_" if series.faint and series.shape == "line" else series.label,
        color=color,
        linewidth=0.7 if series.faint else weight,
        linestyle="none" if series.shape == "marks" else "--" if series.dashed else "-",
        marker="none" if series.shape == "line" else MARKS[style.mark],
        markersize=3 if series.faint else 6,
        markerfacecolor="white" if style.open else color,
        markeredgecolor="white" if on_grid else color,
        clip_on=not on_grid,  # a mark may lie on the edge
        alpha=0.5 if series.faint else 1.0,
    )
    if series.error is None or series.faint:
        return
    if series.shape == "marks":
        axes.errorbar(series.x, series.y, series.error, fmt="none", ecolor=color, elinewidth=1, alpha=0.6)
    else:
        low, high = (
            [y + sign * error for y, error in zip(series.y, series.error, strict=True)] for sign in (-1, 1)
        )
        axes.fill_between(series.x, low, high, color=color, alpha=0.12, linewidth=0)


def _write_names(axes: Axes, series: Series) -> None:
    """Name the points of a front on the side where nothing is: to the left, and above if it rises."""
    up = -1 if series.y[-1] < series.y[0] else 1
    names: list[tuple[float, float]] = []
    for _ in range(ATTEMPTS):  # more room at the edges moves the points, and so the names
        names = _place_names(axes, series, up)
        heights = [height for _, height in names]
        axes.set_xlim(left=_to_data(axes, min(0.0, min(left for left, _ in names) - GAP), 0)[0])
        if up > 0:
            axes.set_ylim(top=_to_data(axes, 0, max(AXES_HEIGHT, max(heights) + GAP))[1])
        else:
            axes.set_ylim(bottom=_to_data(axes, 0, min(0.0, min(heights) - GAP))[1])
    for name, x, y, (_, height) in zip(series.names, series.x, series.y, names, strict=True):
        lift = height - _to_points(axes, x, y)[1]
        axes.annotate(
            name,
            (x, y),
            (-GAP, lift),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=NAME_SIZE,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "0.6"} if abs(lift) > 10 else None,
        )


def _place_names(axes: Axes, series: Series, up: int) -> list[tuple[float, float]]:
    """Return the left end and the height of each name, in points, none on top of another."""
    found: list[tuple[float, float]] = []
    rights: list[float] = []
    for name, x, y in zip(series.names, series.x, series.y, strict=True):
        point, height = _to_points(axes, x, y)
        right = point - GAP
        left = right - 0.6 * NAME_SIZE * len(name)
        height += up * NAME_SIZE
        for other_right, (_, other) in zip(rights, found, strict=True):
            if other_right > left and up * (height - other) < 1.3 * NAME_SIZE:
                height = other + up * 1.3 * NAME_SIZE
        found.append((left, height))
        rights.append(right)
    return found


def _to_points(axes: Axes, x: float, y: float) -> tuple[float, float]:
    across, high = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
    return across * AXES_WIDTH, high * AXES_HEIGHT


def _to_data(axes: Axes, across: float, high: float) -> tuple[float, float]:
    place = axes.transAxes.transform((across / AXES_WIDTH, high / AXES_HEIGHT))
    x, y = axes.transData.inverted().transform(place)
    return x, y


def plot_members(folder: Path | str) -> Plot:
    """Draw each member and the growing ensemble of PFGE and FGE against the iteration."""
    run = Run(folder)
    return _of_run(run, members(run), "PFGE or FGE")


def plot_tradeoff(folder: Path | str) -> Plot:
    """Draw the metrics of every method against the memory at test time, and forward passes."""
    run = Run(folder)
    return _of_run(run, tradeoff(run), "any method")


def _of_run(run: Run, figure: Figure | None, whose: str) -> Plot:
    if figure is None:
        raise StorageError(f"{run.folder.path} has no results of {whose} yet; run pfge compare to its end")
    return plot(figure)
