"""The table of a comparison's methods, from results alone."""

from typing import Any

from pfge.lab.run.results import ComparisonRow
from pfge.reports.tables.methods import methods_table
from pfge.reports.tables.table import Table, is_best
from tests.reports.made_run import heads, texts


def row(
    method: str, seed: int = 1, *, accuracy: float = 0.5, nll: float = 1.0, ece: float = 0.1, members: int = 1
) -> ComparisonRow:
    found: dict[str, Any] = {
        "seed": seed,
        "method": method,
        "members": members,
        "bytes": members * 1000,
        "bytes_of_one": 1000,
        "iterations": 1600,
        "test": {"accuracy": accuracy, "nll": nll, "ece": ece, "brier": 0.3},
        "validation": {"accuracy": accuracy / 2, "nll": nll * 2, "ece": ece, "brier": 0.3},
    }
    return ComparisonRow.from_json(found)


def marked(table: Table, head: str) -> set[str]:
    place = heads(table).index(head)
    return {str(row.cells[0]) for row in table.rows if is_best(row.cells[place])}


def test_the_cells_say_all_of_a_row() -> None:
    table = methods_table([row("FGE", accuracy=0.91239, nll=0.31557, ece=0.0212, members=20)])
    (cells,) = texts(table)
    assert dict(zip(heads(table), cells, strict=True)) == {
        "method": "FGE",
        "members": "20",
        "bytes": "20,000",
        "memory": "20x",
        "accuracy %": "91.24",
        "NLL": "0.3156",
        "ECE %": "2.12",
        "iterations": "1,600",
    }
    assert [column.align for column in table.columns] == ["left", *["right"] * 7]


def test_percentages_have_their_errors_in_percent_too() -> None:
    table = methods_table([row("SWA", 1, accuracy=0.90), row("SWA", 2, accuracy=0.94)])
    assert texts(table)[0][heads(table).index("accuracy %")] == "92.00 ± 2.00"
    assert table.note("X").startswith("mean ± standard error over 2 seeds; X; ")


def test_another_part_of_the_data_can_be_shown() -> None:
    assert texts(methods_table([row("SWA", accuracy=0.8, nll=0.3)], "validation"))[0][4:6] == [
        "40.00",
        "0.6000",
    ]


def test_the_best_accuracy_is_the_largest_and_the_best_loss_and_error_the_smallest() -> None:
    table = methods_table(
        [
            row("SWA", accuracy=0.9, nll=0.2, ece=0.03),
            row("FGE", accuracy=0.8, nll=0.1, ece=0.02),
            row("PFGE", accuracy=0.7, nll=0.3, ece=0.01),
        ]
    )
    assert [marked(table, head) for head in ("accuracy %", "NLL", "ECE %")] == [{"SWA"}, {"FGE"}, {"PFGE"}]


def test_equals_are_best_together() -> None:
    table = methods_table([row("SWA", accuracy=0.9), row("FGE", accuracy=0.9), row("PFGE", accuracy=0.8)])
    assert marked(table, "accuracy %") == {"SWA", "FGE"}


def test_best_is_decided_by_the_mean_over_seeds() -> None:
    rows = [row("SWA", 1, nll=0.1), row("SWA", 2, nll=0.9), row("FGE", 1, nll=0.3), row("FGE", 2, nll=0.3)]
    assert marked(methods_table(rows), "NLL") == {"FGE"}


def test_rows_say_what_kind_they_are() -> None:
    table = methods_table([row(method) for method in ("w0", "SWA", "FGE", "SWAG", "PFGE")])
    assert [str(row.cells[0]) for row in table.rows if row.reference] == ["w0", "FGE", "SWAG"]
    assert [str(row.cells[0]) for row in table.rows if row.emphasized] == ["PFGE"]


def test_an_easy_seed_alone_does_not_make_a_method_the_best() -> None:
    hard = [row(method, seed, nll=nll + 1) for method, nll in (("SWA", 0.3), ("FGE", 0.1)) for seed in (1, 2)]
    easy = [row("SWA", 3, nll=0.3), row("FGE", 3, nll=0.1), row("PFGE", 3, nll=0.2)]
    table = methods_table([*hard, *easy])
    assert marked(table, "NLL") == {"FGE"}  # though the mean of PFGE, which has only seed 3, is lower
    assert table.note("X").startswith(
        "mean ± standard error over 1 to 3 seeds; X; ranked by seed 3, which all methods have; "
    )


def test_without_a_seed_of_all_methods_there_is_no_best() -> None:
    table = methods_table([row("SWA", 1), row("FGE", 2)])
    assert marked(table, "NLL") == set()
    assert table.note("X").startswith(
        "no number is marked as the best, as no seed has results of all methods yet; "
    )
