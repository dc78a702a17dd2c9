"""The table of formats: what each ensemble takes and is worth compressed and not, whole and as a cascade."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pfge.lab.run.results import FormatRow
from pfge.reports.statistics import (
    FormatSummary,
    is_comparable,
    of_shared_seeds,
    over_seeds,
    paired_metrics,
    pareto_front,
    summarize_formats,
    task_of,
)
from pfge.reports.tables.cells import Count, Missing, Number, Ratio, Text
from pfge.reports.tables.table import Row, Table, columns, method_row
from pfge.tasks import Classification, Metric, Task


def formats_table(rows: Sequence[FormatRow]) -> Table:
    """Return a row for each method, format and cascade."""
    metrics = paired_metrics(rows)
    heads = [metric.head for metric in metrics]
    found = summarize_formats(rows)
    comparable = [metric for metric in metrics if is_comparable(task_of(rows), metric)]
    best = _on_a_front(summarize_formats(of_shared_seeds(rows)), comparable)
    without = "" if any(row.cascade for row in rows) else f" No cascades without {_missing(task_of(rows))}."
    return Table(
        "formats",
        "formats",
        columns("method", "stored as", "cascade", "bytes", "memory", "passes", *heads, "KL"),
        [replace(_row(row, metrics), folded=bool(best) and row.name not in best) for row in found],
        [
            *over_seeds(rows),
            "memory relative to one float32 model",
            "passes: mean number of members evaluated per example",
            f"KL: from the same members as float32, all evaluated.{without}",
        ],
    )


def _on_a_front(rows: Sequence[FormatSummary], metrics: Sequence[Metric]) -> set[str]:
    """Return the names of what nothing as small, or nothing as fast, is better than in some metric."""

    def loss(metric: Metric, row: FormatSummary) -> float:
        return metric.penalty(row.metrics[metric.name].mean)

    costs: list[Callable[[FormatSummary], float]] = [lambda row: row.bytes, lambda row: row.passes.mean]
    fronts = (pareto_front(rows, cost, partial(loss, metric)) for metric in metrics for cost in costs)
    return {row.name for front in fronts for row in front}


def _missing(task: Task) -> str:
    return "validation data" if isinstance(task, Classification) else "classes"


def _row(row: FormatSummary, metrics: Sequence[Metric]) -> Row:
    return method_row(
        row.method,
        Text(row.format),
        Text("yes") if row.cascade else Missing(),
        Count(row.bytes),
        Ratio(row.relative_bytes),
        Number.of(row.passes, 2) if row.cascade else Count(round(row.passes.mean)),
        *(Number.of_metric(metric, row.metrics[metric.name]) for metric in metrics),
        Missing() if row.kl is None else Number.of(row.kl, 5),
    )
