"""A table as CSV: nothing but numbers where there are numbers."""

import csv
import io

import pytest

from pfge.reports.tables.table import (
    Column,
    Count,
    Interval,
    Missing,
    Number,
    Ratio,
    Row,
    Table,
    Text,
    to_csv,
)
from tests.reports.tables.made_tables import METHODS, table


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_csv_has_a_column_for_each_number() -> None:
    assert read(to_csv(METHODS)) == [
        ["method", "bytes", "accuracy %", "accuracy % standard error"],
        ["w0", "1000", "90.00", "0.10"],
        ["PFGE", "4000", "93.00", "0.20"],
    ]


def test_csv_of_every_kind_of_cell_is_numbers_without_signs_units_or_separators() -> None:
    made = to_csv(
        table(
            Text('odd, "name"'),
            Number(0.5, signed=True),
            Interval(-1.0, 2.0, 1),
            Count(1_000_000, note="4 trainings"),
            Ratio(0.625),
            Missing("one seed"),
        )
    )
    assert read(made) == [
        ["a", "b", "c low", "c high", "d", "d note", "e", "f"],
        ['odd, "name"', "0.5000", "-1.0", "2.0", "1000000", "4 trainings", "0.625", ""],
    ]


def test_csv_leaves_empty_what_a_row_lacks() -> None:
    rows = [Row([Number(1.0, 0.5, 1)]), Row([Number(2.0, digits=1)]), Row([Count(3)]), Row([Missing()])]
    made = to_csv(Table("t", "t", [Column("", name="x")], rows))
    assert read(made) == [["x", "x standard error"], ["1.0", "0.5"], ["2.0", ""], ["3", ""], ["", ""]]


def test_csv_takes_no_text_apart() -> None:
    assert read(to_csv(table(Text("a to b ± c"), Text("1,000"))))[1] == ["a to b ± c", "1,000"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\tx"])
def test_a_text_is_no_formula_of_a_spreadsheet(text: str) -> None:
    assert read(to_csv(table(Text(text), Number(-1.0))))[1] == [f"'{text}", "-1.0000"]
