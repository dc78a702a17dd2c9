"""The table of a comparison's methods: what each takes, and what it is worth."""

from collections.abc import Sequence

from pfge.lab.run.results import ComparisonRow
from pfge.methods import is_for_reference
from pfge.reports.statistics import (
    MethodSummary,
    best_by,
    is_comparable,
    of_shared_seeds,
    over_seeds,
    shown_metrics,
    summarize,
    task_of,
)
from pfge.reports.tables.cells import Count, Number, Ratio
from pfge.reports.tables.table import LAST_MEMBERS, Row, Table, best_notes, columns, method_row
from pfge.tasks import Metric


def methods_table(rows: Sequence[ComparisonRow], part: str = "test") -> Table:
    """Return a row for each method over its seeds; the best of each metric over shared seeds is marked."""
    found = summarize(rows, part)
    metrics = shown_metrics(rows, part)
    shared = of_shared_seeds(rows)
    ranked = summarize(shared, part)
    best = {
        metric: best_by(metric, {row.method: row.metrics[metric.name].mean for row in ranked})
        for metric in metrics
        if is_comparable(task_of(rows), metric, part)
    }
    unranked = [metric.label for metric in metrics if metric not in best]

    def number(row: MethodSummary, metric: Metric) -> Number:
        return Number.of_metric(metric, row.metrics[metric.name], best=row.method in best.get(metric, ()))

    def shown(row: MethodSummary) -> Row:
        return method_row(
            row.method,
            Count(row.members),
            Count(row.bytes),
            Ratio(row.relative_bytes, digits=6),
            *(number(row, metric) for metric in metrics),
            Count(row.iterations, note=f"{row.trainings} trainings" if row.trainings > 1 else ""),
            reference=is_for_reference(row.method),
        )

    heads = [metric.head for metric in metrics]
    return Table(
        "methods",
        "methods",
        columns("method", "members", "bytes", "memory", *heads, "iterations"),
        [shown(row) for row in found],
        [
            *over_seeds(rows),
            *best_notes({row.seed for row in shared}, {row.seed for row in rows}),
            *([f"{', '.join(unranked)} are not ranked before they are calibrated"] if unranked else []),
            LAST_MEMBERS,
            "memory relative to one model",
            "iterations beyond w0.",
        ],
    )
