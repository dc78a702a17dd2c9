"""A table as a value."""

import pytest

from pfge.reports.tables.table import BEST, Column, Number, Row, Table, Text, columns, is_best


def test_the_heading_names_the_subject_if_there_is_one() -> None:
    assert Table("t", "title", [], []).heading == "title"
    assert Table("t", "title", [], [], subject="mine").heading == "mine: title"


def test_notes_are_a_sentence_with_the_renderers_word_for_the_best() -> None:
    assert Table("t", "t", [], [], ["a", BEST, "b."]).note("bold: best") == "a; bold: best; b."


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="a row of table t must have 2 cells, got 1"):
        Table("t", "t", columns("a", "b"), [Row([Text("x")])])


def test_only_numbers_can_be_best() -> None:
    assert [is_best(cell) for cell in (Number(1.0, best=True), Number(1.0), Text("▲"))] == [
        True,
        False,
        False,
    ]


def test_some_columns_are_kept_by_the_words_that_they_begin_with() -> None:
    made = Table(
        "t",
        "t",
        [Column("method"), Column("NLL at T"), Column("", name="NLL interval"), Column("nllx"), Column("T")],
        [Row([Text(str(number)) for number in range(5)])],
    )
    kept = made.only(["nll"])
    assert kept is not None
    assert [str(cell) for cell in kept.rows[0].cells] == ["0", "1", "2"]
    assert made.only(["method"]) is None
    assert made.only([""]) is None
