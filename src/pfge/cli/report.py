"""`pfge report`: show runs as one page, as tables for a paper, or as figures."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pfge.reports.run import Run

FORMATS = ("html", "markdown", "latex", "csv")


HELP = "make a page of one or more runs, or tables and figures for a paper"
DESCRIPTION = (
    "Make one self-contained HTML page of runs, finished or not, from their results alone; "
    "or print their tables, or draw their figures."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="a run folder")
    parser.add_argument(
        "--format", choices=FORMATS, default="html", help="html for a page (default); others print tables"
    )
    parser.add_argument(
        "--table", metavar="NAME", help="print only this table, such as methods, calibration or differences"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file for the page or the tables (default: RUN/report.html)"
    )
    parser.add_argument(
        "--figures", type=Path, metavar="FOLDER", help="draw every figure as SVG and PNG (needs matplotlib)"
    )


def run(options: argparse.Namespace) -> int:
    """Make the page, tables or figures, and print their files."""
    import warnings

    from pfge.reports.page.page import make_page
    from pfge.reports.run import Run
    from pfge.storage.files import write_text

    runs = [Run(folder) for folder in options.folders]
    for problem in (problem for run in runs for problem in run.left_out):
        warnings.warn(problem, stacklevel=2)
    if options.table and options.format == "html":
        raise ValueError("--table chooses among printed tables; give --format markdown, latex or csv too")
    if options.figures:
        _draw(runs, options.figures)
    if options.format != "html":
        text = _tables(runs, options.format, options.table)
        if options.out:
            write_text(options.out, text)
        else:
            print(text, end="")
    elif options.out or not options.figures:
        out = options.out or options.folders[0] / "report.html"
        write_text(out, make_page(runs))
        print(f"Report: {out}")
    return 0


def _tables(runs: "list[Run]", kind: str, wanted: str | None) -> str:
    from pfge.reports.contents import report_tables
    from pfge.reports.tables.render_csv import to_csv
    from pfge.reports.tables.render_latex import to_latex
    from pfge.reports.tables.render_markdown import to_markdown
    from pfge.storage.files import StorageError

    headed = [
        (f"{run.name}: {table.heading}" if len(runs) > 1 else table.heading, table)
        for run in runs
        for table in report_tables(run)
    ]
    if not headed:
        raise StorageError(f"{', '.join(str(run.folder.path) for run in runs)} has no results yet")
    chosen = [(heading, table) for heading, table in headed if wanted in (None, table.key)]
    if not chosen:
        names = ", ".join(dict.fromkeys(table.key for _, table in headed))
        raise ValueError(f"--table must be one of {names}, got {wanted!r}")
    if kind == "latex":
        return "\n\n".join(to_latex(table) for _, table in chosen) + "\n"
    if kind == "csv":
        if len(chosen) == 1:
            return to_csv(chosen[0][1])
        return "\n".join(f"# {heading}\n{to_csv(table)}" for heading, table in chosen)
    return "\n\n".join(to_markdown(table, heading) for heading, table in chosen) + "\n"


def _draw(runs: "list[Run]", folder: Path) -> None:
    from pfge.reports.contents import report_figures

    try:
        from pfge.reports.figures.plots import save_figures
    except ImportError as error:
        raise ValueError(str(error)) from None
    for number, run in enumerate(runs, 1):
        prefix = f"run-{number}-" if len(runs) > 1 else ""
        for file in save_figures(report_figures(run), folder, prefix):
            print(file)
