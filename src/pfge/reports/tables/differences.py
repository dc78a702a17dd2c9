"""The table of differences: what the intervals over test examples and seeds allow to say."""

from collections.abc import Mapping

from pfge.reports.tables.cells import Cell, Interval, Missing, Number, Text
from pfge.reports.tables.table import Column, Table, method_row
from pfge.reports.verdicts import Gap
from pfge.tasks import Metric


def differences_table(
    gaps: Mapping[str, Mapping[str, Gap]], reference: str, *, calibrated: bool = False
) -> Table | None:
    """Return a row for each method that has an interval in every metric; None if none has.

    Args:
        gaps: Of each method in each metric.
        reference: The method that the others are compared with.
        calibrated: Whether to say that they are compared calibrated.
    """
    found_gaps = [gap for found in gaps.values() for gap in found.values()]
    metrics = list(dict.fromkeys(gap.metric for gap in found_gaps))
    rows = [
        method_row(
            method,
            *(cell for metric in metrics for cell in _cells(found[metric.name])),
            Text(", ".join(f"{gap.metric.label} {gap.verdict}" for gap in found.values())),
            _missing(found),
        )
        for method, found in gaps.items()
        if all(metric.name in found and found[metric.name].interval for metric in metrics)
    ]
    if not rows:
        return None
    columns = [Column("method", align="left")]
    for metric in metrics:
        head = f"{metric.label}, points" if metric.unit == "%" else metric.label
        columns += [Column(head), Column("95 % interval", name=f"{head} 95 % interval")]
    columns += [Column("verdict", align="left"), Column("would decide it", align="left")]
    return Table(
        "differences",
        f"differences from {reference}{', calibrated' if calibrated else ''}",
        columns,
        rows,
        _notes(
            found_gaps, f"{reference}, calibrated on validation data" if calibrated else reference, len(gaps)
        ),
    )


def _notes(gaps: list[Gap], reference: str, methods: int) -> list[str]:
    sample = gaps[0]
    sources = f"{sample.called} and seeds"
    if any(gap.seed_error is None for gap in gaps):
        sources = f"{sample.called} alone where there is one seed, which decides nothing"
    margins = dict.fromkeys(f"{gap.margin_in_words} in {gap.metric.label}" for gap in gaps)
    together = f", for all {methods} methods together (Bonferroni) in each metric" if methods > 1 else ""
    closer = dict.fromkeys(gap.metric for gap in gaps if gap.metric.better == "closer")
    return [
        f"Each method minus {reference}, with the 95 % interval over {sources}{together}",
        *(f"better or worse in {metric.label}: {_excludes_the_aim(metric)}" for metric in closer),
        f"equal: the interval lies within the margin, {', '.join(margins)}",
        "undecided: it neither does, nor excludes 0.",
    ]


def _excludes_the_aim(metric: Metric) -> str:
    aim = f"{metric.factor * (metric.aim or 0.0):g} {metric.unit}".rstrip()
    return f"the interval of the mean of both methods excludes {aim} too"


def _cells(gap: Gap) -> list[Cell]:
    factor, digits = gap.metric.factor, gap.metric.digits
    low, high = gap.interval or (gap.mean, gap.mean)
    return [
        Number(factor * gap.mean, digits=digits, signed=True),
        Interval(factor * low, factor * high, digits),
    ]


def _missing(gaps: Mapping[str, Gap]) -> Cell:
    """Return what would decide each metric; once if it is the same for all that are undecided."""
    missing = {gap.metric.label: gap.missing for gap in gaps.values() if gap.missing}
    if not missing:
        return Missing()
    if len(set(missing.values())) == 1:
        return Text(next(iter(missing.values())))
    return Text("; ".join(f"{label}: {text}" for label, text in missing.items()))
