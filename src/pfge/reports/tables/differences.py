"""The table of differences: which are more than noise, over test images and over seeds."""

from collections.abc import Mapping

from pfge.reports.significance import Gap
from pfge.reports.tables.cells import Cell, Interval, Missing, Number, StandardError, Text
from pfge.reports.tables.table import Column, Table, method_row


def differences_table(gaps: Mapping[str, Mapping[str, Gap]], reference: str) -> Table | None:
    """Return a row for each method that has an interval over test examples; None if none has."""
    found_gaps = [gap for found in gaps.values() for gap in found.values()]
    metrics = list(dict.fromkeys(gap.metric for gap in found_gaps))
    rows = [
        method_row(
            method, *(cell for metric in metrics for cell in _cells(found[metric.name])), _verdict(found)
        )
        for method, found in gaps.items()
        if all(metric.name in found and found[metric.name].over_images for metric in metrics)
    ]
    if not rows:
        return None
    examples = found_gaps[0].examples
    columns = [Column("method", align="left")]
    for metric in metrics:
        head = f"{metric.label}, points" if metric.unit == "%" else metric.label
        columns += [
            Column(head),
            *(Column(noise, name=f"{head} {noise}") for noise in (f"95 % over {examples}", "over seeds")),
        ]
    note = (
        f"Each method minus {reference}: the interval from drawing the test {examples} again (paired "
        "bootstrap), the standard error over seeds, and a verdict where neither explains the difference."
    )
    columns.append(Column("", name="verdict"))
    return Table("differences", f"differences from {reference}", columns, rows, [note])


def _cells(gap: Gap) -> list[Cell]:
    factor, digits = gap.metric.factor, gap.metric.digits
    images, seeds = gap.over_images, gap.over_seeds
    return [
        Number(factor * gap.mean, digits=digits, signed=True),
        Interval(factor * images.low, factor * images.high, digits) if images else Missing(),
        StandardError(factor * seeds.standard_error, digits) if seeds else Missing("one seed"),
    ]


def _verdict(gaps: Mapping[str, Gap]) -> Text:
    clear = [
        f"{gap.metric.label} {gap.verdict}" for gap in gaps.values() if gap.verdict in ("better", "worse")
    ]
    return Text(", ".join(clear) or "within noise")
