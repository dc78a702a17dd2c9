"""Tables for papers and programs."""

import csv
import io
from pathlib import Path

from pfge.reports.report import report_tables
from pfge.reports.run import Run
from pfge.reports.tables.comparison import to_markdown
from pfge.reports.tables.renderers import to_csv, to_latex
from pfge.reports.tables.table import Table
from tests.reports.made_run import make_run


def table(*rows: list[str], title: str = "methods") -> Table:
    return Table(title, ("method", "bytes", "accuracy %"), list(rows), "▲ best.")


def test_latex_has_rules_bold_and_references_apart() -> None:
    made = to_latex(table(["w0", "1,000", "90.00 ± 0.10  "], ["PFGE", "4,000", "93.00 ± 0.20 ▲"]))
    assert made.splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{Methods. bold: best.}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"method & bytes & accuracy \% \\",
        r"\midrule",
        r"PFGE & 4,000 & \textbf{93.00 $\pm$ 0.20} \\",
        r"\midrule",
        r"w0 & 1,000 & 90.00 $\pm$ 0.10 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_latex_escapes_every_character_that_means_something() -> None:
    made = to_latex(table([r"a_b & $c$ #1 {x} \end ~^ <y>", "1", "2"]))
    assert (
        r"a\_b \& \$c\$ \#1 \{x\} \textbackslash{}end \textasciitilde{}\textasciicircum{} "
        r"\textless{}y\textgreater{} & 1 & 2 \\"
    ) in made


def test_csv_has_a_column_for_each_number() -> None:
    made = to_csv(table(["w0", "1,000", "90.00 ± 0.10  "], ['odd, "name"', "4,000", "93.00 ▲"]))
    assert list(csv.reader(io.StringIO(made))) == [
        ["method", "bytes", "accuracy %", "accuracy % standard error"],
        ["w0", "1000", "90.00", "0.10"],
        ['odd, "name"', "4000", "93.00", ""],
    ]


def test_csv_of_differences_has_intervals_as_two_columns_and_no_name_twice(tmp_path: Path) -> None:
    tables = report_tables(Run(make_run(tmp_path / "run")))
    (differences,) = [found for found in tables if found.title.startswith("differences")]
    header, *rows = csv.reader(io.StringIO(to_csv(differences)))
    assert len(set(header)) == len(header)
    fge = dict(zip(header, next(row for row in rows if row[0] == "FGE"), strict=True))
    assert float(fge["accuracy, points"]) == 0.5
    assert float(fge["NLL"]) == -0.01
    low, high = (float(fge[f"NLL 95 % over images {end}"]) for end in ("low", "high"))
    assert low < -0.01 < high


def test_a_method_whose_name_reads_like_an_interval_stays_one_column() -> None:
    made = to_csv(table(["a to b ± c", "1", "2"]))
    assert next(csv.reader(io.StringIO(made.splitlines()[1]))) == ["a to b ± c", "1", "2"]


def test_markdown_escapes_what_would_end_a_cell_or_begin_markup() -> None:
    made = to_markdown(("method", "x"), [["a|b* <i> `c`", "1"]])
    assert made.splitlines()[2] == r"| a\|b\* \<i> \`c\` | 1 |"
