"""A table as LaTeX or CSV; Markdown is in `comparison`."""

import csv
import io
import re
from collections.abc import Sequence

from pfge.methods import is_for_reference
from pfge.reports.tables.comparison import BEST
from pfge.reports.tables.table import Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")


def split_reference_rows(table: Table) -> tuple[list[list[str]], list[list[str]]]:
    """Return the rows of a table of methods, and those that are there to judge the others by."""
    if table.title != "methods":
        return table.cells, []
    rows = [row for row in table.cells if not is_for_reference(row[0])]
    return rows, [row for row in table.cells if is_for_reference(row[0])]


def to_latex(table: Table) -> str:
    """Return a table for the package booktabs, the best of each metric in bold."""
    rows, references = split_reference_rows(table)
    groups = [group for group in (rows, references) if group]
    body = "\n\\midrule\n".join("\n".join(_latex_row(row) for row in group) for group in groups)
    note = _escape_latex(table.note.replace(f"{BEST} best", "bold: best"))
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape_latex(_sentence(table.title))}. {note}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"\toprule",
            _latex_row(table.columns),
            r"\midrule",
            body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def to_csv(table: Table) -> str:
    """Return a table for programs: a mean and its error, or the two ends of an interval, are two columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    first, *others = _unique(table.columns)
    columns = [([first], [[row[0]] for row in table.cells])]
    columns += [_csv_column(name, [row[i] for row in table.cells]) for i, name in enumerate(others, 1)]
    writer.writerow([name for names, _ in columns for name in names])
    for index in range(len(table.cells)):
        writer.writerow([value for _, values in columns for value in values[index]])
    return out.getvalue()


def _csv_column(name: str, cells: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    plain = [cell.replace(BEST, "").strip() for cell in cells]
    if any(" ± " in cell for cell in plain):
        return [name, f"{name} standard error"], [[*cell.split(" ± "), ""][:2] for cell in plain]
    if any(" to " in cell for cell in plain):
        return [f"{name} low", f"{name} high"], [[*cell.split(" to "), ""][:2] for cell in plain]
    plain = [cell.removeprefix("± ") for cell in plain]
    return [name], [[cell.replace(",", "") if _THOUSANDS.fullmatch(cell) else cell] for cell in plain]


def _unique(columns: Sequence[str]) -> list[str]:
    """Return names of columns, each said with the metric before it where it comes twice."""
    found, metric = [], ""
    for name in columns:
        if columns.count(name) > 1:
            found.append(f"{metric} {name}")
        else:
            metric = name
            found.append(name or "verdict")
    return found


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(_latex_cell(cell.strip()) for cell in cells) + r" \\"


def _latex_cell(cell: str) -> str:
    if cell.endswith(BEST):
        return rf"\textbf{{{_escape_latex(cell.removesuffix(BEST).strip())}}}"
    return _escape_latex(cell)


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
