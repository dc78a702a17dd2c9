"""A table as Markdown."""

from pfge.reports.tables.table import Count, Text, to_markdown
from tests.reports.tables.made_tables import METHODS, table


def test_markdown_marks_the_best_and_aligns_numbers() -> None:
    assert to_markdown(METHODS, "run: methods").splitlines() == [
        "## run: methods",
        "",
        "| method | bytes | accuracy % |",
        "| --- | ---: | ---: |",
        "| w0 | 1,000 | 90.00 ± 0.10 |",
        "| PFGE | 4,000 | 93.00 ± 0.20 ▲ |",
        "",
        "▲ best; memory.",
    ]


def test_markdown_escapes_what_would_end_a_cell_or_begin_markup() -> None:
    made = to_markdown(table(Text("a|b* <i> `c`\n![x](http://y)"), Count(1)))
    assert made.splitlines()[2] == r"| a\|b\* \<i> \`c\` !\[x\](http://y) | 1 |"


def test_markdown_shows_characters_that_would_steer_a_terminal() -> None:
    made = to_markdown(table(Text("a\x1b(0"), Count(1)))
    assert "\x1b" not in made
    assert "x1b(0" in made
