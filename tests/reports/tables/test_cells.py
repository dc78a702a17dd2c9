"""Cells as text."""

import pytest

from pfge.reports.statistics import Estimate
from pfge.reports.tables.table import Cell, Count, Interval, Missing, Number, Ratio, Text
from pfge.tasks import Classification


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (Text("a ± b"), "a ± b"),
        (Number(0.12345, 0.01, 3), "0.123 ± 0.010"),
        (Number(0.12345, digits=3), "0.123"),
        (Number(0.5, signed=True), "+0.5000"),
        (Number(-0.5, signed=True), "-0.5000"),
        (Interval(-0.001, 0.02, 3), "-0.001 to +0.020"),
        (Count(1_234_567), "1,234,567"),
        (Count(96, note="4 trainings"), "96 (4 trainings)"),
        (Count(1000, signed=True), "+1,000"),
        (Ratio(4.0), "4x"),
        (Ratio(0.26684), "0.267x"),
        (Ratio(1234.0, digits=6), "1234x"),
        (Missing(), ""),
        (Missing("one seed"), "one seed"),
    ],
)
def test_a_cell_has_a_text(cell: Cell, expected: str) -> None:
    assert str(cell) == expected


def test_a_metric_is_shown_in_its_unit_and_digits() -> None:
    accuracy, nll = Classification.metrics[:2]
    assert str(Number.of_metric(accuracy, Estimate(0.91239, 0.001))) == "91.24 ± 0.10"
    assert Number.of_metric(nll, Estimate(0.5), best=True) == Number(0.5, None, 4, best=True)
