"""Figures as plain data.

Two renderers draw them: `assets/charts.js` for the page, and `figures/plots.py` for papers and notebooks. A
table of the same numbers is made from them too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal

from pfge.reports.statistics import Estimate
from pfge.tasks import Metric

Shape = Literal["line", "marks", "both"]
MAP_COLORS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""From dark blue to yellow, in steps that look equal."""


@dataclass(frozen=True)
class Series:
    """Points that belong together.

    Attributes:
        label: Name in legends.
        x: Horizontal coordinate of each point.
        y: Vertical coordinate of each point.
        method: The method that they belong to, which decides their style; hiding it hides them. "" for none.
        error: The standard error of each point, where there is one.
        shape: A line through the points, their marks, or both.
        faint: Whether this is only the background of another series.
        dashed: Whether the line is dashed.
        names: Name of each point, where the label is not specific enough.
        named: Whether the names are written beside the points, as of a front, which has a free side.
        color: Color of a line that belongs to no method; "" for the neutral one.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    method: str = ""
    error: Sequence[float] | None = None
    shape: Shape = "both"
    faint: bool = False
    dashed: bool = False
    names: Sequence[str] = ()
    named: bool = False
    color: str = ""

    @classmethod
    def of_estimates(
        cls,
        label: str,
        x: Sequence[float],
        estimates: Sequence[Estimate],
        *,
        method: str = "",
        shape: Shape = "both",
        faint: bool = False,
        dashed: bool = False,
        names: Sequence[str] = (),
    ) -> "Series":
        """Return a series of means with their errors, where every one has an error."""
        errors = [estimate.error for estimate in estimates if estimate.error is not None]
        return cls(
            label,
            x,
            [estimate.mean for estimate in estimates],
            method,
            errors if len(errors) == len(estimates) else None,
            shape,
            faint,
            dashed,
            names,
        )

    def finite(self) -> "Series":
        """Return the series without points that cannot be drawn."""
        kept = [i for i, point in enumerate(zip(self.x, self.y, strict=True)) if all(map(isfinite, point))]
        error = None if self.error is None else [self.error[i] for i in kept]
        names = [self.names[i] for i in kept] if self.names else ()
        return replace(
            self, x=[self.x[i] for i in kept], y=[self.y[i] for i in kept], error=error, names=names
        )


@dataclass(frozen=True)
class Grid:
    """Values at the points of a grid, shown as colors from low to high.

    Colors are spaced by the logarithm of the distance from a value that is `offset` below the lowest one.

    Attributes:
        label: Name of the values.
        x: Coordinates of the columns, growing.
        y: Coordinates of the rows, growing.
        values: A row for each y, with an entry for each x.
        low: The lowest value.
        high: The highest value.
        offset: Distance of the lowest value, which may be 0 and then has no logarithm itself.
        ticks: Values that are named beside the scale of colors.
        colors: Red, green and blue of evenly spaced colors, from 0 to 255.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    values: Sequence[Sequence[float]]
    low: float
    high: float
    offset: float
    ticks: Sequence[float]
    colors: Sequence[tuple[int, int, int]] = MAP_COLORS

    @classmethod
    def of(
        cls, label: str, x: Sequence[float], y: Sequence[float], values: Sequence[Sequence[float]]
    ) -> "Grid":
        """Return the grid with its scale of colors."""
        low, high = min(map(min, values)), max(map(max, values))
        is_flat = high - low <= 1e-9 * max(abs(low), abs(high))
        offset = 1.0 if is_flat else 0.01 * (high - low)
        ratio = (high - low + offset) / offset
        ticks = [low + offset * (ratio ** (step / 4) - 1) for step in range(5)]
        return cls(label, x, y, values, low, high, offset, list(dict.fromkeys(ticks)))


@dataclass(frozen=True)
class Label:
    """A name beside a point.

    Attributes:
        text: The name.
        point: Coordinates of the point.
        place: Coordinates of the middle of the name.
        method: The method that the point belongs to; hiding it hides the name.
    """

    text: str
    point: tuple[float, float]
    place: tuple[float, float]
    method: str


@dataclass(frozen=True)
class Panel:
    """Series that share a pair of axes.

    Attributes:
        title: Title for people.
        x_label: The name of the x axis.
        y_label: The name of the y axis.
        series: Lines and marks, the last on top.
        log_x: Whether equal steps on the x axis are equal ratios.
        x_ticks: Values on the x axis with their names; the renderer chooses them if empty.
        guides: Horizontal coordinates of vertical lines.
        diagonal: Whether the line y = x is drawn, from 0 to 1.
        labeled: Whether every point bears the name of its method.
        grid: Values that are drawn as colors below the series, on axes that end where the grid does.
        labels: Names of points at chosen places.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    x_ticks: Sequence[tuple[float, str]] = ()
    guides: Sequence[float] = ()
    diagonal: bool = False
    labeled: bool = False
    grid: Grid | None = None
    labels: Sequence[Label] = ()

    @property
    def columns(self) -> tuple[str, str, str, str]:
        """The names of the columns of `rows`."""
        return ("series", self.x_label, self.y_label, "standard error")

    def rows(self) -> list[list[str]]:
        """Return the numbers of every series, as text."""
        names = dict(self.x_ticks)
        return [
            [
                series.names[index] if series.names else series.label,
                names.get(x, f"{x:,}" if isinstance(x, int) else f"{x:.6g}").replace("\n", " "),
                f"{y:.5g}",
                "" if series.error is None else f"{series.error[index]:.2g}",
            ]
            for series in self.series
            for index, (x, y) in enumerate(zip(series.x, series.y, strict=True))
        ]


@dataclass(frozen=True)
class Figure:
    """Panels side by side.

    Attributes:
        name: Short name, for files and addresses.
        title: Title for people.
        caption: Explanation for readers.
        panels: At least one, with at least one point in each.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]

    @property
    def methods(self) -> list[str]:
        """The methods that are drawn, in the order in which they first appear."""
        return list(dict.fromkeys(s.method for panel in self.panels for s in panel.series if s.method))


def axis_label(metric: Metric) -> str:
    """Return the name of an axis that shows a metric."""
    return f"{metric.label}, {metric.unit}" if metric.unit else metric.label


def figure_of(name: str, title: str, caption: str, panels: Sequence[Panel]) -> Figure | None:
    """Return a figure of the panels, series and points that can be drawn; None without any."""
    drawable = []
    for panel in panels:
        series = [finite for s in panel.series if (finite := s.finite()).x]
        if any(s.method for s in series):
            drawable.append(replace(panel, series=series))
    return Figure(name, title, caption, drawable) if drawable else None
