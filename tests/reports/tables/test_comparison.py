"""The table of a comparison, from results alone."""

from math import sqrt
from typing import Any

import pytest

from pfge.reports.tables.comparison import BEST, COLUMNS, Number, comparison_cells, summarize


def result(
    method: str, seed: int = 1, *, accuracy: float = 0.5, nll: float = 1.0, ece: float = 0.1, members: int = 1
) -> dict[str, Any]:
    return {
        "seed": seed,
        "method": method,
        "members": members,
        "bytes": members * 1000,
        "bytes_of_one": 1000,
        "iterations": 1600,
        "test": {"accuracy": accuracy, "nll": nll, "ece": ece, "brier": 0.3},
        "validation": {"accuracy": accuracy / 2, "nll": nll * 2, "ece": ece, "brier": 0.3},
    }


def marked(results: list[dict[str, Any]], column: str) -> set[str]:
    place = COLUMNS.index(column)
    return {cells[0] for cells in comparison_cells(summarize(results)) if BEST in cells[place]}


def test_a_number_is_the_mean_and_its_standard_error() -> None:
    number = Number.of([1.0, 2.0, 6.0])  # deviations -2, -1, 3: sample variance 14 / 2
    assert number.mean == pytest.approx(3.0)
    assert number.error == pytest.approx(sqrt(7) / sqrt(3))


def test_one_seed_has_no_standard_error() -> None:
    assert Number.of([0.25]) == Number(0.25, None)
    assert Number.of([0.25]).show(2) == "0.25"


def test_an_error_is_shown_behind_its_mean() -> None:
    assert Number(0.12345, 0.01).show(3) == "0.123 ± 0.010"


def test_each_method_is_one_row_over_its_seeds() -> None:
    rows = summarize([result("SWA", 1, accuracy=0.90), result("FGE", 1), result("SWA", 2, accuracy=0.94)])
    assert [row.method for row in rows] == ["SWA", "FGE"]
    assert rows[0].accuracy.mean == pytest.approx(0.92)
    assert rows[0].accuracy.error == pytest.approx(0.02)  # sqrt(0.0008) / sqrt(2)


def test_rows_are_in_the_papers_order_and_then_in_their_own() -> None:
    methods = ["PFGE", "mine", "SWAG*", "FGE*", "w0", "FGE", "another", "SWAG", "SWA"]
    rows = summarize([result(method) for method in methods])
    assert [row.method for row in rows] == [
        "w0",
        "SWA",
        "FGE",
        "FGE*",
        "SWAG",
        "SWAG*",
        "PFGE",
        "mine",
        "another",
    ]


def test_another_part_of_the_data_can_be_summarized() -> None:
    (row,) = summarize([result("SWA", accuracy=0.8, nll=0.3)], part="validation")
    assert (row.accuracy.mean, row.nll.mean) == (0.4, 0.6)


def test_the_cells_say_all_of_a_row() -> None:
    (cells,) = comparison_cells(
        summarize([result("FGE", 1, accuracy=0.91239, nll=0.31557, ece=0.0212, members=20)])
    )
    assert dict(zip(COLUMNS, cells, strict=True)) == {
        "method": "FGE",
        "members": "20",
        "bytes": "20,000",
        "memory": "20x",
        "accuracy %": f"91.24 {BEST}",
        "NLL": f"0.3156 {BEST}",
        "ECE %": f"2.12 {BEST}",
        "iterations": "1,600",
    }


def test_percentages_have_their_errors_in_percent_too() -> None:
    rows = summarize([result("SWA", 1, accuracy=0.90), result("SWA", 2, accuracy=0.94)])
    assert comparison_cells(rows)[0][COLUMNS.index("accuracy %")].startswith("92.00 ± 2.00")


def test_the_best_accuracy_is_the_largest_and_the_best_loss_and_error_the_smallest() -> None:
    results = [
        result("SWA", accuracy=0.9, nll=0.2, ece=0.03),
        result("FGE", accuracy=0.8, nll=0.1, ece=0.02),
        result("PFGE", accuracy=0.7, nll=0.3, ece=0.01),
    ]
    assert [marked(results, column) for column in ("accuracy %", "NLL", "ECE %")] == [
        {"SWA"},
        {"FGE"},
        {"PFGE"},
    ]


def test_equals_are_best_together() -> None:
    results = [result("SWA", accuracy=0.9), result("FGE", accuracy=0.9), result("PFGE", accuracy=0.8)]
    assert marked(results, "accuracy %") == {"SWA", "FGE"}


def test_best_is_decided_by_the_mean_over_seeds() -> None:
    results = [
        result("SWA", 1, nll=0.1),
        result("SWA", 2, nll=0.9),
        result("FGE", 1, nll=0.3),
        result("FGE", 2, nll=0.3),
    ]
    assert marked(results, "NLL") == {"FGE"}
