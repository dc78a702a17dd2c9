"""A table in a terminal."""

import pytest

from pfge.reports.tables.table import Count, Text, print_table
from tests.reports.tables.made_tables import METHODS, table


def test_the_terminal_marks_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(METHODS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "whatever it is called"
    assert "│ w0     │ 1,000 │   90.00 ± 0.10 │" in lines
    assert "│ PFGE   │ 4,000 │ 93.00 ± 0.20 ▲ │" in lines
    assert lines[-1].strip() == "▲ best; memory."


def test_the_terminal_shows_another_heading_if_one_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(METHODS, "run: methods")
    assert capsys.readouterr().out.splitlines()[0].strip() == "run: methods"


def test_no_text_can_steer_a_terminal_or_is_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(table(Text("\x1b[2J\x07[red]x"), Count(1)))
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert r"\x1b[2J\x07[red]x" in printed
