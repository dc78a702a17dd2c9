"""The quality of every method, in every measured format, against memory and forward passes."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from math import ceil, floor, log2

from pfge.lab.run.results import ComparisonRow, FormatRow
from pfge.reports.figures.figure import Figure, Panel, Series, axis_label, figure_of
from pfge.reports.printable import show_bytes
from pfge.reports.run import Run
from pfge.reports.statistics import (
    UNPACKED,
    Estimate,
    FormatSummary,
    comparable_part,
    measured,
    name_seeds,
    paired_metrics,
    pareto_front,
    shared_seeds,
    summarize,
    summarize_formats,
)
from pfge.tasks import Metric

MOST_TICKS = 5
SHORT = (("int8 base + ", ""), ("int8 base", "int8"))
"""How a format is called where there is little room."""


def tradeoff(run: Run) -> Figure | None:
    """Return the paired metrics of every method against its memory at test time, with the Pareto front.

    Where formats were measured, each is a point, and a second row of panels is against forward passes. Means
    are over the seeds that all methods have; without such a seed the front is left out.
    """
    part = comparable_part(run.task)
    formats = [row for row in run.formats if measured(row, part)]
    known = {row.method for row in formats}
    compared: list[ComparisonRow | FormatRow] = [
        *(row for row in run.results if row.method not in known and measured(row, part)),
        *formats,
    ]
    metrics = paired_metrics(compared, part)
    shared = shared_seeds(compared)
    drawn = [row for row in compared if row.seed in shared] or compared
    of_formats = summarize_formats([row for row in drawn if isinstance(row, FormatRow)])
    of_results = summarize([row for row in drawn if isinstance(row, ComparisonRow)], part)
    of_methods = [FormatSummary.of_method(row) for row in of_results]
    note = _seeds(shared, {row.seed for row in compared})
    if part.endswith(".calibrated"):
        note += " All are calibrated on validation data."
    if of_formats:
        return _of_formats(of_methods + of_formats, metrics, note, front=bool(shared))
    return _of_methods(of_methods, metrics, note, run, front=bool(shared))


def _seeds(shared: Set[int], seeds: Set[int]) -> str:
    """Return a sentence about the seeds for the caption; "" if all methods have the same."""
    if not shared:
        return " The Pareto front is left out until a seed has results of all methods."
    return "" if shared == seeds else f" Drawn over {name_seeds(shared)}, which all methods have."


def _of_methods(
    rows: Sequence[FormatSummary], metrics: Sequence[Metric], note: str, run: Run, *, front: bool
) -> Figure | None:
    sizes = sorted({(row.bytes, f"{row.relative_bytes:.3g}×\n{show_bytes(row.bytes)}") for row in rows})
    panels = []
    for metric in metrics:
        marks = [
            Series.of_estimates(
                row.method, [row.bytes], [_metric(row, metric)], method=row.method, shape="marks"
            )
            for row in rows
        ]
        panels.append(
            Panel(
                _title(metric),
                "memory at test time",
                axis_label(metric),
                [*([_front(rows, _bytes, metric)] if front else []), *marks],
                log_x=True,
                x_ticks=sizes,
                labeled=True,
            )
        )
    return figure_of(
        "tradeoff",
        "What memory buys",
        "Each method on the test set against the bytes of weights that it needs to predict. Bars are one "
        "standard error over seeds. No method on the dashed line, the Pareto front, is beaten by another "
        "that needs as little memory. What each takes and is worth compressed, and as a cascade, is drawn "
        f"too once pfge formats {run.folder.path} has measured it.{note}",
        panels,
    )


def _of_formats(
    rows: Sequence[FormatSummary], metrics: Sequence[Metric], note: str, *, front: bool
) -> Figure | None:
    one = round(rows[0].bytes / rows[0].relative_bytes)
    axes = (
        _Axis("memory at test time, bytes", one, _bytes, lambda n: f"{n:g}×\n{show_bytes(round(n * one))}"),
        _Axis("forward passes an example, mean", 1, _passes, lambda n: f"{n:g}"),
    )
    panels = [
        Panel(
            _title(metric),
            axis.label,
            axis_label(metric),
            [
                *([_front(rows, axis.cost, metric, named=True)] if front else []),
                *_marks(rows, axis.cost, metric),
            ],
            log_x=True,
            x_ticks=axis.ticks(rows),
        )
        for axis in axes
        for metric in metrics
    ]
    return figure_of(
        "tradeoff",
        "What memory and forward passes buy",
        "Each method on the test set in each format that it can be shipped in. Large marks: float32, all "
        "members evaluated. Small marks: compressed to int8, or to an int8 base and a few bits for each "
        "member; or a cascade, which evaluates one member after another until the prediction is confident; "
        "or both. Bars are one standard error over seeds. Nothing named on the dashed line, the Pareto "
        "front, is beaten by "
        f"anything as cheap.{note}",
        panels,
    )


@dataclass(frozen=True)
class _Axis:
    """A cost: its label, the cost of one unit, how to get it from a row, and how to name a tick."""

    label: str
    unit: int
    cost: Callable[[FormatSummary], float]
    name: Callable[[float], str]

    def ticks(self, rows: Sequence[FormatSummary]) -> list[tuple[float, str]]:
        """Return powers of 2 that lie among the rows, or of 4, 8, ... if those are too many."""
        powers = [log2(self.cost(row) / self.unit) for row in rows]
        low, high = ceil(min(powers)), floor(max(powers))
        step = max(1, ceil((high - low + 1) / MOST_TICKS))
        chosen = [2.0**power for power in range(low, high + 1) if power % step == 0]
        return [(number * self.unit, self.name(number)) for number in chosen]


def _marks(
    rows: Sequence[FormatSummary], cost: Callable[[FormatSummary], float], metric: Metric
) -> list[Series]:
    """Return the points of each method: compressed ones and cascades, and the plain one on top of them."""
    found = []
    for is_plain in (False, True):
        for method in dict.fromkeys(row.method for row in rows):
            own = [row for row in rows if row.method == method and row.is_plain == is_plain]
            found.append(
                Series.of_estimates(
                    method if is_plain else f"{method}, compressed or cascade",
                    [cost(row) for row in own],
                    [_metric(row, metric) for row in own],
                    method=method,
                    shape="marks",
                    faint=not is_plain,
                    names=[row.name for row in own],
                )
            )
    return found


def _front(
    rows: Sequence[FormatSummary],
    cost: Callable[[FormatSummary], float],
    metric: Metric,
    *,
    named: bool = False,
) -> Series:
    # Of equals the smaller is named, then the faster.
    ordered = sorted(rows, key=lambda row: (_bytes(row), _passes(row)))
    front = pareto_front(ordered, cost, lambda row: metric.penalty(row.metrics[metric.name].mean))
    return Series(
        "Pareto front",
        [cost(row) for row in front],
        [_metric(row, metric).mean for row in front],
        shape="line",
        dashed=True,
        names=[_short_name(row) for row in front] if named else (),
        named=named,
    )


def _short_name(row: FormatSummary) -> str:
    stored_as = "" if row.format == UNPACKED else row.format
    for long, short in SHORT:
        stored_as = stored_as.replace(long, short)
    return " ".join(part for part in (row.method, stored_as, "cascade" if row.cascade else "") if part)


def _title(metric: Metric) -> str:
    better = metric.better if metric.aim is None else f"closer to {metric.factor * metric.aim:g}"
    return f"{axis_label(metric)} ({better} is better)"


def _metric(row: FormatSummary, metric: Metric) -> Estimate:
    return row.metrics[metric.name].scaled(metric.factor)


def _bytes(row: FormatSummary) -> float:
    return row.bytes


def _passes(row: FormatSummary) -> float:
    return row.passes.mean
