"""The table of differences, from gaps."""

import pytest

from pfge.metrics.significance import Difference, SeedDifference
from pfge.reports.significance import Gap
from pfge.reports.tables.differences import differences_table
from pfge.tasks import Classification
from tests.reports.made_run import heads, texts

ACCURACY, NLL = (metric for metric in Classification.metrics if metric.name in ("accuracy", "nll"))


def gap(metric: str, mean: float, half: float, error: float | None = None) -> Gap:
    return Gap(
        {"accuracy": ACCURACY, "nll": NLL}[metric],
        mean,
        Difference(mean, mean - half, mean + half),
        None if error is None else SeedDifference(mean, error, 2),
    )


def cells_of(accuracy: Gap, nll: Gap) -> list[str]:
    table = differences_table({"FGE": {"accuracy": accuracy, "nll": nll}}, "PFGE")
    assert table is not None
    (cells,) = texts(table)
    assert len(cells) == len(heads(table))
    return cells


def test_a_difference_has_its_interval_and_its_error_in_the_unit_of_the_metric() -> None:
    assert cells_of(gap("accuracy", 0.01, 0.005, 0.002), gap("nll", 0.05, 0.0)) == [
        "FGE",
        "+1.00",
        "+0.50 to +1.50",
        "± 0.20",
        "+0.0500",
        "+0.0500 to +0.0500",
        "one seed",
        "accuracy better, NLL worse",
    ]


@pytest.mark.parametrize(
    ("accuracy", "nll", "expected"),
    [
        (0.1, -0.1, "accuracy better, NLL better"),
        (-0.1, 0.1, "accuracy worse, NLL worse"),
        (0.001, 0.1, "NLL worse"),
        (0.001, 0.0, "within noise"),
    ],
)
def test_the_verdict_names_what_is_more_than_noise(accuracy: float, nll: float, expected: str) -> None:
    assert cells_of(gap("accuracy", accuracy, 0.01), gap("nll", nll, 0.01))[-1] == expected


def test_columns_have_names_that_are_there_once() -> None:
    table = differences_table({"FGE": {m: gap(m, 0.1, 0.1) for m in ("accuracy", "nll")}}, "PFGE")
    assert table is not None
    assert heads(table) == [
        "method",
        *("accuracy, points", "95 % over images", "over seeds"),
        *("NLL", "95 % over images", "over seeds"),
        "",
    ]
    names = [column.name or column.head for column in table.columns]
    assert len(set(names)) == len(names)
    assert (names[2], names[-1]) == ("accuracy, points 95 % over images", "verdict")


def test_a_method_without_an_interval_has_no_row() -> None:
    without = {"accuracy": Gap(ACCURACY, 0.1, None, None), "nll": Gap(NLL, 0.1, None, None)}
    assert differences_table({"FGE": without}, "PFGE") is None
    assert differences_table({}, "PFGE") is None
