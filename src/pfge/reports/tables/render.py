"""Tables as HTML, LaTeX, Markdown, CSV and in a terminal."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from html import escape as escape_html

from rich import table as rich_table
from rich.console import Console
from rich.markup import escape as escape_markup

from pfge.reports.printable import printable
from pfge.reports.tables.table import Cell, Count, Interval, Missing, Number, Ratio, Row, Table, Text, is_best

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a text that begins with one of these for a formula."""


def to_csv(table: Table) -> str:
    """Return a table in which each number has a column of its own, under a name that is there once."""
    columns = [
        (column.name or column.head, [_values(row.cells[index]) for row in table.rows])
        for index, column in enumerate(table.columns)
    ]
    parts = [[*dict.fromkeys(part for cell in cells for part in cell)] or [""] for _, cells in columns]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        f"{name} {part}".rstrip() for (name, _), of in zip(columns, parts, strict=True) for part in of
    )
    for index in range(len(table.rows)):
        writer.writerow(
            cells[index].get(part, "") for (_, cells), of in zip(columns, parts, strict=True) for part in of
        )
    return out.getvalue()


def _values(cell: Cell) -> dict[str, str]:
    """Return the numbers of a cell by what their column adds to the name of the cell's."""
    match cell:
        case Text(text):
            return {"": f"'{text}" if text.startswith(FORMULA) else text}
        case Number(value, error, digits):
            of_error = {} if error is None else {"standard error": f"{error:.{digits}f}"}
            return {"": f"{value:.{digits}f}", **of_error}
        case Interval(low, high, digits):
            return {"low": f"{low:.{digits}f}", "high": f"{high:.{digits}f}"}
        case Count(value, note):
            return {"": str(value), **({"note": note} if note else {})}
        case Ratio(value, digits):
            return {"": f"{value:.{digits}g}"}
        case Missing():
            return {}


WIDE = 4
"""A table of more columns is shown as cards on a narrow screen, each cell under the head of its column."""


def to_html(table: Table) -> str:
    """Return a table without its title and note, the best of each metric strong, rows for reference apart.

    An interval stands below the number that it belongs to, in one column, so that wide tables fit a page.
    """
    shown = [index for index in range(len(table.columns)) if not _is_of_intervals(table, index)]
    head = "".join(_head(table, index) for index in shown)
    rows = [row for row in table.rows if not row.reference]
    references = [row for row in table.rows if row.reference]
    bodies = f"<tbody>{_rows(rows, table, shown)}</tbody>" if rows else ""
    if references:
        title = f'<tr><th colspan="{len(shown)}">For reference</th></tr>'
        bodies += f'<tbody class="reference">{title}{_rows(references, table, shown)}</tbody>'
    wide = _class("wide" if len(shown) > WIDE else "")
    return f'<div class="scroll"><table{wide}><thead><tr>{head}</tr></thead>{bodies}</table></div>'


def _is_of_intervals(table: Table, index: int) -> bool:
    """Return whether a column has intervals, and may be joined to the one before it."""
    return (
        index > 1 and bool(table.rows) and all(isinstance(row.cells[index], Interval) for row in table.rows)
    )


def _below(table: Table, index: int) -> int | None:
    """Return the column of the intervals of a column's numbers."""
    below = index + 1
    return below if below < len(table.columns) and _is_of_intervals(table, below) else None


def _head(table: Table, index: int) -> str:
    column, below = table.columns[index], _below(table, index)
    under = "" if below is None else f'<span class="below">{escape_html(table.columns[below].head)}</span>'
    text = _class("text" if column.align == "left" else "")
    return f'<th{text} scope="col">{escape_html(column.head)}{under}</th>'


def _rows(rows: Sequence[Row], table: Table, shown: Sequence[int]) -> str:
    return "".join(
        ('<tr class="strong">' if row.emphasized else "<tr>")
        + "".join(_html_cell(row, table, index) for index in shown)
        + "</tr>"
        for row in rows
    )


def _html_cell(row: Row, table: Table, index: int) -> str:
    cell, column, below = row.cells[index], table.columns[index], _below(table, index)
    text = _text(cell)
    shown = f"<strong>{text}</strong>" if is_best(cell) else text
    kind = "number" if isinstance(cell, Number | Interval) else "text" if column.align == "left" else ""
    under = "" if below is None else f'<span class="below">{_text(row.cells[below])}</span>'
    return f'<td{_class(kind)} data-head="{escape_html(column.head)}">{shown}{under}</td>'


def _text(cell: Cell) -> str:
    """Return the text of a cell; where it is too wide, the line breaks before the error of a number."""
    return escape_html(str(cell)).replace("± ", "±&nbsp;")


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


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
        "\n".join(_latex_line(map(_latex_cell, row.cells)) for row in group) for group in groups if group
    )
    caption = f"{table.heading[:1].upper()}{table.heading[1:]}. {table.note('bold: best')}"
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape_latex(caption)}}}",
            rf"\begin{{tabular}}{{{''.join(column.align[0] for column in table.columns)}}}",
            r"\toprule",
            _latex_line(_escape_latex(column.head) for column in table.columns),
            r"\midrule",
            body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell) -> str:
    text = _escape_latex(str(cell))
    return rf"\textbf{{{text}}}" if is_best(cell) else text


def _escape_latex(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in " ".join(text.split()))


BEST = "▲"


def to_markdown(table: Table, heading: str = "") -> str:
    """Return a table with its note, under a heading if one is given."""
    lines = [
        _markdown_line(_escape_markdown(column.head) for column in table.columns),
        _markdown_line("---" if column.align == "left" else "---:" for column in table.columns),
        *(_markdown_line(map(_markdown_cell, row.cells)) for row in table.rows),
    ]
    parts = (
        f"## {_escape_markdown(heading)}" if heading else "",
        "\n".join(lines),
        table.note(f"{BEST} best"),
    )
    return "\n\n".join(filter(None, parts))


def _markdown_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: Cell) -> str:
    return _escape_markdown(str(cell)) + (f" {BEST}" if is_best(cell) else "")


def _escape_markdown(text: str) -> str:
    """Return a text in one line, without what would end a cell or begin emphasis, code, markup or a link."""
    return re.sub(r"([\\*|<`\[\]])", r"\\\1", printable(" ".join(text.split())))


WIDTH = 140
"""Where the output is not a terminal."""


def print_table(table: Table, heading: str = "") -> None:
    """Print a table under its own heading or another."""
    note = table.note(f"{BEST} best")
    drawn = rich_table.Table(
        title=_printable(heading or table.heading),
        caption=_printable(note) if note else None,
        caption_justify="left",
    )
    for index, column in enumerate(table.columns):
        is_prose = index > 0 and column.align == "left"
        drawn.add_column(_printable(column.head), justify=column.align, no_wrap=not is_prose)
    for row in table.rows:
        drawn.add_row(*map(_terminal_cell, row.cells), style="bold" if row.emphasized else "")
    console().print(drawn)


def console() -> Console:
    """Return the console that commands print to."""
    return Console(width=None if Console().is_terminal else WIDTH)


def _terminal_cell(cell: Cell) -> str:
    return _printable(f"{cell} {BEST}" if is_best(cell) else str(cell))


def _printable(text: str) -> str:
    """Return a text in which no character can steer the terminal, and brackets are brackets."""
    return escape_markup(printable(text))
