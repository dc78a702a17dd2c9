"""The tables of connectivity, from results alone."""

from math import sqrt

import pytest

from pfge.lab.run.results import ConnectivityRow
from pfge.reports.tables.diagnosis import connectivity_tables
from tests.reports.made_run import connectivity_rows, heads, texts


def row(
    method: str, loss: list[float], error: list[float], norms: list[float] | None = None
) -> ConnectivityRow:
    values = {"train_loss": loss, "train_error": error, "test_loss": [9.0] * 3, "test_error": error}
    changed = {
        "method": method,
        "settings": {"weight_decay": 0.2},
        "trace": {"t": [0, 0.5, 1], "values": values, "squared_norms": norms or [0.0] * 3},
    }
    return ConnectivityRow.from_json(connectivity_rows()[0] | changed)


def tables(*rows: ConnectivityRow) -> list[list[list[str]]]:
    return [texts(table) for table in connectivity_tables(rows)]


def test_there_are_the_papers_three_tables() -> None:
    found = connectivity_tables([row("PFGE", [1, 2, 1], [0.1, 0.2, 0.1])])
    assert [(table.title, heads(table)) for table in found] == [
        ("test error along the curve, %", ["method", "pairs", "max", "min", "mean"]),
        ("training loss along the curve", ["method", "pairs", "max", "min", "mean"]),
        ("mode connectivity", ["method", "pairs", "training loss", "with penalty", "training error"]),
    ]


def test_one_pair_is_shown_as_it_is() -> None:
    error, loss, connectivity = tables(row("PFGE", [1.0, 4.0, 1.0], [0.05, 0.02, 0.08], [5.0, 0.0, 15.0]))
    assert error == [["PFGE", "1", "8.00", "2.00", "5.00"]]
    assert loss == [["PFGE", "1", "4.00000", "1.00000", "2.00000"]]
    # 1 - 4; with 0.2 / 2 times the norms (1.5 + 2.5) / 2 - 4; (0.05 + 0.08) / 2 - 0.02
    assert connectivity == [["PFGE", "1", "-3.00000", "-2.00000", "0.04500"]]


def test_pairs_are_averaged_with_their_standard_error() -> None:
    rows = tables(row("FGE", [1, 2, 1], [0] * 3), row("FGE", [1, 6, 1], [0] * 3))[1]
    assert rows == [["FGE", "2", "4.00000 ± 2.00000", "1.00000 ± 0.00000", "2.00000 ± 0.66667"]]
    # means 4/3 and 8/3: they deviate by 2/3 from 2, so the error is sqrt(2 (2/3)²) / sqrt(2)
    assert sqrt(2 * (2 / 3) ** 2) / sqrt(2) == pytest.approx(0.66667, abs=1e-5)


def test_methods_are_rows_in_the_order_of_the_other_tables() -> None:
    pairs = [row(method, [1, 1, 1], [0] * 3) for method in ("PFGE", "FGE", "PFGE")]
    assert [cells[:2] for cells in tables(*pairs)[0]] == [["FGE", "1"], ["PFGE", "2"]]
