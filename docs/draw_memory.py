"""Draw docs/memory.svg, the README's picture, from the storage formats of a run in docs/recorded.

Run it with `python docs/draw_memory.py` after the run has been recorded again.
"""

from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from site_extension.recorded import recorded_run

from pfge.reports.appearance import styles
from pfge.reports.statistics import summarize_formats

DOCS = Path(__file__).parent
RUN, DATA = "demo", "MNIST-1D"
SHOWN = {
    "w0": ("int8 base", "the trained model"),
    "SWA": ("int8 base", "SWA, 1 model"),
    "PFGE": ("int8 base + 3 bits", "PFGE, 4 members"),
    "FGE": ("int8 base + 3 bits", "FGE, 20 members"),
}
"""For each method, the compressed format that is drawn beside float32, and the label."""
STYLE: dict[str, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "pfge",  # the same figure is the same file
}


class Point(NamedTuple):
    """A method in one storage format: its bytes relative to one model, and its quality on the test set."""

    memory: float
    accuracy: float
    nll: float


def read_points(name: str = RUN) -> dict[tuple[str, str], Point]:
    """Return what is not a cascade, over the seeds of the run, by method and storage format."""
    return {
        (row.method, row.format): Point(
            row.relative_bytes, 100 * row.metrics["accuracy"].mean, row.metrics["nll"].mean
        )
        for row in summarize_formats(recorded_run(name).formats)
        if not row.cascade
    }


@mpl.rc_context(STYLE)
def draw(points: dict[tuple[str, str], Point]) -> Figure:
    """Return accuracy and NLL against memory, with an arrow from float32 to the compressed format."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    figure.suptitle(f"{DATA}: filled = float32, hollow = compressed by pfge", fontsize=10)
    quantities = (("accuracy", "test accuracy, % (higher is better)"), ("nll", "test NLL (lower is better)"))
    for place, (quantity, title) in enumerate(quantities, 1):
        axes = figure.add_subplot(1, len(quantities), place)
        _draw_panel(axes, points, quantity)
        axes.set_title(title, fontsize=9)
    return figure


def _draw_panel(axes: Axes, points: dict[tuple[str, str], Point], quantity: str) -> None:
    axes.set_xscale("log")
    axes.set_xlim(0.18, 40)
    for method, style in styles(list(SHOWN)).items():
        compressed, label = SHOWN[method]
        before, after = points[method, "float32"], points[method, compressed]
        start = (before.memory, getattr(before, quantity))
        end = (after.memory, getattr(after, quantity))
        arrow = {"arrowstyle": "->", "color": style.light, "shrinkA": 6, "shrinkB": 6}
        axes.annotate("", xy=end, xytext=start, arrowprops=arrow)
        axes.plot(*start, "o", color=style.light, markersize=9)
        axes.plot(*end, "o", color=style.light, markersize=9, markerfacecolor="white")
        middle = ((start[0] * end[0]) ** 0.5, (start[1] + end[1]) / 2)
        others = [getattr(points[other, "float32"], quantity) for other in SHOWN if other != method]
        nearest = min(others, key=lambda value: abs(value - start[1]))
        offset = (0, -17) if nearest > start[1] else (0, 10)  # away from the nearest label
        axes.annotate(
            label,
            middle,
            xytext=offset,
            textcoords="offset points",
            ha="center",
            color=style.light,
            fontsize=9,
        )
    axes.margins(y=0.2)
    axes.set_xticks([0.25, 0.5, 1, 2, 4, 10, 20], ["¼", "½", "1", "2", "4", "10", "20"])
    axes.minorticks_off()
    axes.set_xlabel("memory of the weights, in float32 models")


@mpl.rc_context(STYLE)
def to_svg(figure: Figure) -> str:
    """Return the figure as SVG, the same each time."""
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


if __name__ == "__main__":
    (DOCS / "memory.svg").write_text(to_svg(draw(read_points())))
