"""The table of calibration: each method as predicted, and at temperatures fitted on validation data."""

from collections.abc import Sequence

from pfge.lab.run.results import ComparisonRow
from pfge.reports.statistics import Estimate, by_method, main_metrics
from pfge.reports.tables.cells import Number
from pfge.reports.tables.table import Table, columns, method_row


def calibration_table(rows: Sequence[ComparisonRow], part: str = "test") -> Table | None:
    """Return a row for each method that has temperatures; None if none has."""
    metrics = [metric for metric in main_metrics() if metric.uses_confidence]
    found = []
    for method, of_method in by_method(rows).items():
        # As predicted, at the temperature of the mean, and at those of the members.
        kinds = [
            (row.metrics[part], row.calibrated.metrics[part], row.calibrated_members.metrics[part])
            for row in of_method
            if row.calibrated
            and row.calibrated_members
            and part in row.calibrated.metrics.keys() & row.calibrated_members.metrics.keys()
        ]
        if not kinds:
            continue
        temperatures = [row.calibrated.temperature for row in of_method if row.calibrated]
        numbers = [
            Number.of_metric(metric, Estimate.of([measured[metric.name] for measured in kind]))
            for metric in metrics
            for kind in zip(*kinds, strict=True)
        ]
        found.append(method_row(method, Number.of(Estimate.of(temperatures), 3), *numbers))
    if not found:
        return None
    heads = [f"{metric.head}{kind}" for metric in metrics for kind in ("", " at T", " at members' T")]
    note = "T: the temperature fitted on validation data, of the mean, or one of each member."
    return Table("calibration", "calibration", columns("method", "T", *heads), found, [note])
