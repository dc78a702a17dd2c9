"""A table as LaTeX, for the package booktabs."""

from collections.abc import Iterable

from pfge.reports.tables.cells import Cell
from pfge.reports.tables.table import Table, is_best

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


PREAMBLE = r"% These tables need \usepackage{booktabs} in the preamble."
"""A comment for the beginning of a file of tables."""


def to_latex(table: Table) -> str:
    """Return a table with the best of each metric in bold, and the rows for reference apart."""
    groups = [[row for row in table.rows if row.reference is apart] for apart in (False, True)]
    body = "\n\\midrule\n".join(
        "\n".join(_line(map(_cell, row.cells)) for row in group) for group in groups if group
    )
    caption = f"{table.heading[:1].upper()}{table.heading[1:]}. {table.note('bold: best')}"
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape(caption)}}}",
            rf"\begin{{tabular}}{{{''.join(column.align[0] for column in table.columns)}}}",
            r"\toprule",
            _line(_escape(column.head) for column in table.columns),
            r"\midrule",
            body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(cell: Cell) -> str:
    text = _escape(str(cell))
    return rf"\textbf{{{text}}}" if is_best(cell) else text


def _escape(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in " ".join(text.split()))
