"""A table as LaTeX."""

from pfge.reports.tables.table import Count, Text, to_latex
from tests.reports.tables.made_tables import METHODS, table


def test_latex_has_rules_bold_and_references_apart() -> None:
    assert to_latex(METHODS).splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{Whatever it is called. bold: best; memory.}",
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
    made = to_latex(table(Text(r"a_b & $c$ #1 {x} \end ~^ <y>"), Count(1), Count(2)))
    assert (
        r"a\_b \& \$c\$ \#1 \{x\} \textbackslash{}end \textasciitilde{}\textasciicircum{} "
        r"\textless{}y\textgreater{} & 1 & 2 \\"
    ) in made
