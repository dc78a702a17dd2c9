"""A table as HTML."""

from pfge.reports.tables.table import WIDE, Column, Interval, Missing, Number, Row, Table, Text, to_html
from tests.reports.tables.made_tables import METHODS


def test_html_has_strong_numbers_rows_and_references_apart() -> None:
    assert to_html(METHODS) == (
        '<div class="scroll"><table><thead><tr><th class="text" scope="col">method</th>'
        '<th scope="col">bytes</th><th scope="col">accuracy %</th></tr></thead>'
        '<tbody><tr class="strong"><td class="text" data-head="method">PFGE</td>'
        '<td data-head="bytes">4,000</td>'
        '<td class="number" data-head="accuracy %"><strong>93.00 ±&nbsp;0.20</strong></td></tr></tbody>'
        '<tbody class="reference"><tr><th colspan="3">For reference</th></tr>'
        '<tr><td class="text" data-head="method">w0</td><td data-head="bytes">1,000</td>'
        '<td class="number" data-head="accuracy %">90.00 ±&nbsp;0.10</td></tr></tbody></table></div>'
    )


def test_an_interval_stands_below_its_number() -> None:
    columns = [
        Column("method", align="left"),
        Column("NLL"),
        Column("95 % interval", name="NLL 95 % interval"),
    ]
    made = to_html(Table("t", "t", columns, [Row([Text("SWA"), Number(0.01), Interval(-0.02, 0.03)])]))
    assert '<th scope="col">NLL<span class="below">95 % interval</span></th>' in made
    assert (
        '<td class="number" data-head="NLL">0.0100<span class="below">-0.0200 to +0.0300</span></td></tr>'
        in made
    )
    assert made.count("<th") == made.count("<td") + 1 == 3  # <thead> begins so, too


def test_html_escapes_every_text() -> None:
    made = to_html(Table("t", "t", [Column('<b>"')], [Row([Text("<script>")]), Row([Missing("&")])]))
    assert "<script>" not in made
    assert '<td data-head="&lt;b&gt;&quot;">&lt;script&gt;</td>' in made
    assert '<th scope="col">&lt;b&gt;&quot;</th>' in made
    assert ">&amp;</td>" in made


def test_tables_of_many_columns_can_become_cards() -> None:
    few, many = (Table("t", "t", [Column(str(i)) for i in range(n)], []) for n in (WIDE, WIDE + 1))
    assert "<table><thead>" in to_html(few)
    assert '<table class="wide"><thead>' in to_html(many)
