"""A table as HTML."""

from pfge.reports.tables.cells import Missing, Text
from pfge.reports.tables.render_html import to_html
from pfge.reports.tables.table import Column, Row, Table
from tests.reports.tables.made_tables import METHODS


def test_html_has_strong_numbers_rows_and_references_apart() -> None:
    assert to_html(METHODS) == (
        '<div class="scroll"><table><thead><tr><th scope="col">method</th><th scope="col">bytes</th>'
        '<th scope="col">accuracy %</th></tr></thead>'
        '<tbody><tr class="strong"><td>PFGE</td><td>4,000</td><td><strong>93.00 ± 0.20</strong></td></tr>'
        '</tbody><tbody class="reference"><tr><th colspan="3">For reference</th></tr>'
        "<tr><td>w0</td><td>1,000</td><td>90.00 ± 0.10</td></tr></tbody></table></div>"
    )


def test_html_escapes_every_text() -> None:
    made = to_html(Table("t", "t", [Column("<b>")], [Row([Text("<script>")]), Row([Missing("&")])]))
    assert "<script>" not in made
    assert "<td>&lt;script&gt;</td>" in made
    assert '<th scope="col">&lt;b&gt;</th>' in made
    assert "<td>&amp;</td>" in made
