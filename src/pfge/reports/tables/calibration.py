"""The table of calibration: each method as predicted, and at temperatures fitted on validation data."""

from collections.abc import Sequence
from statistics import fmean

from pfge.lab.run.results import ComparisonRow
from pfge.reports.statistics import Estimate, by_method, shown_metrics, task_of
from pfge.reports.tables.cells import Number
from pfge.reports.tables.table import Table, columns, method_row
from pfge.tasks import MultiLabel, Regression, Task


def calibration_table(rows: Sequence[ComparisonRow], part: str = "test") -> Table | None:
    """Return a row for each method that has temperatures; None if none has."""
    metrics = [metric for metric in shown_metrics(rows) if metric.uses_confidence]
    found = []
    for method, of_method in by_method(rows).items():
        # The temperature, and the metrics as predicted, at it, and at the members' own.
        fitted = [
            (at.temperature, row.metrics[part], at.metrics[part], at_members.metrics[part])
            for row in of_method
            if (at := row.calibrated)
            and (at_members := row.calibrated_members)
            and part in at.metrics.keys() & at_members.metrics.keys()
        ]
        if not fitted:
            continue
        temperatures, *kinds = zip(*fitted, strict=True)
        means = [fmean(t) if isinstance(t, Sequence) else t for t in temperatures]
        numbers = [
            Number.of_metric(metric, Estimate.of([measured[metric.name] for measured in kind]))
            for metric in metrics
            for kind in kinds
        ]
        found.append(method_row(method, Number.of(Estimate.of(means), 3), *numbers))
    if not found:
        return None
    heads = [f"{metric.head}{kind}" for metric in metrics for kind in ("", " at T", " at members' T")]
    note = f"T: {_fitted(task_of(rows))} fitted on validation data, of the mean, or one of each member."
    return Table("calibration", "calibration", columns("method", "T", *heads), found, [note])


def _fitted(task: Task) -> str:
    match task:
        case Regression(noise="fixed"):
            return "the variance of the noise"
        case Regression():
            return "the factor on the variance"
        case MultiLabel():
            return "the mean of the labels' temperatures"
    return "the temperature"
