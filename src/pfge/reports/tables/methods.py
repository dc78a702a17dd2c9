"""The table of a comparison's methods: what each takes, and what it is worth."""

from collections.abc import Sequence

from pfge.lab.run.results import ComparisonRow
from pfge.methods import is_for_reference
from pfge.reports.statistics import MethodSummary, over_seeds, shown_metrics, summarize
from pfge.reports.tables.cells import Count, Number, Ratio
from pfge.reports.tables.table import BEST, LAST_MEMBERS, Row, Table, columns, method_row
from pfge.tasks import Metric


def methods_table(rows: Sequence[ComparisonRow], part: str = "test") -> Table:
    """Return a row for each method over its seeds; the best of each metric is marked."""
    found = summarize(rows, part)
    metrics = shown_metrics(rows, part)
    best = {metric.name: _best(metric, found) for metric in metrics}

    def number(row: MethodSummary, metric: Metric) -> Number:
        estimate = row.metrics[metric.name]
        return Number.of_metric(metric, estimate, best=estimate.mean == best[metric.name])

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
            BEST,
            LAST_MEMBERS,
            "memory relative to one model",
            "iterations beyond w0.",
        ],
    )


def _best(metric: Metric, rows: Sequence[MethodSummary]) -> float:
    return min((row.metrics[metric.name].mean for row in rows), key=metric.penalty)
