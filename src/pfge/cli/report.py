"""Show the results of runs as tables, a page or figures: table, report."""

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfge.cli.arguments import command
from pfge.errors import InvalidValueError

if TYPE_CHECKING:
    from pfge.reports.run import Run
    from pfge.reports.tables.table import Table


def _add_table_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--part", choices=("test", "validation"), default="test", help="part of the data (default: test)"
    )


@command("print the results of a run as Markdown", _add_table_arguments)
def table(options: argparse.Namespace) -> int:
    """Print the tables of a run, finished or not, with the command and machine of the run."""
    import warnings

    from pfge.reports.contents import comparison_tables
    from pfge.reports.run import Run
    from pfge.reports.tables.table import to_markdown
    from pfge.storage.files import StorageError

    found = Run(options.folder)
    for problem in found.left_out:
        warnings.warn(problem, stacklevel=2)
    rows = [row for row in found.results if options.part in row.metrics]
    if not rows:
        path = found.folder.path
        raise StorageError(f"{path} has no {options.part} results yet; run pfge compare --out {path}")
    for table in comparison_tables(found.folder, rows, found.formats, options.part, found.margins):
        print(f"{to_markdown(table)}\n")
    seeds = sorted({row.seed for row in rows})
    print(f"{options.part} set, seeds {', '.join(map(str, seeds))}{_describe_machine(found.environment)}")
    return 0


def _describe_machine(environment: dict[str, Any]) -> str:
    """Return the command and the machine, as far as known."""
    shown = {"command": "; `{}`", "torch": "; torch {}", "threads": ", {} threads", "processor": ", {}"}
    known = {
        key: str(value).replace("`", "'")
        for key, value in environment.items()
        if isinstance(value, str | int)
    }
    return "".join(form.format(known[key]) for key, form in shown.items() if key in known)


FORMATS = ("html", "markdown", "latex", "csv")
LIST = ""
"""The value of `--table` without a name."""


def _add_report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="a run folder")
    parser.add_argument(
        "--format", choices=FORMATS, default="html", help="html for a page (default); others print tables"
    )
    parser.add_argument(
        "--table",
        metavar="NAME",
        nargs="?",
        const=LIST,
        help="print only this table, such as methods or differences; without NAME, list the tables",
    )
    parser.add_argument(
        "--columns",
        metavar="NAMES",
        help="print only these columns and the first, such as accuracy,nll; tables without them are left out",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file for the page or the tables (default: RUN/report.html); a folder for several CSV tables",
    )
    parser.add_argument(
        "--figures", type=Path, metavar="FOLDER", help="draw every figure as SVG and PNG (needs matplotlib)"
    )


@command("make a page of one or more runs, or tables and figures for a paper", _add_report_arguments)
def report(options: argparse.Namespace) -> int:
    """Make one self-contained HTML page of runs, finished or not, from their results alone.

    Or print their tables, or draw their figures.
    """
    import warnings

    from pfge.reports.page import make_page
    from pfge.reports.run import Run
    from pfge.storage.files import write_text

    for name in ("table", "columns"):
        if getattr(options, name) not in (None, LIST) and options.format == "html":
            raise InvalidValueError(f"--{name} needs printed tables; add --format markdown, latex or csv")
    runs = [Run(folder) for folder in options.folders]
    for problem in (problem for run in runs for problem in run.left_out):
        warnings.warn(problem, stacklevel=2)
    if options.table == LIST:
        found = {table.key: table.title for _, table in _headed(runs)}
        print("\n".join(f"{key}: {title}" for key, title in found.items()))
        return 0
    if options.figures:
        _draw(runs, options.figures)
    if options.format != "html":
        chosen = _choose(_headed(runs), options.table, options.columns)
        _write_tables(chosen, options.format, options.out)
    elif options.out or not options.figures:
        out = options.out or options.folders[0] / "report.html"
        write_text(out, make_page(runs))
        print(f"Report: {out}")
    return 0


def _headed(runs: "list[Run]") -> "list[tuple[str, Table]]":
    """Return all tables with headings that name their run if there are several."""
    from pfge.reports.contents import report_tables
    from pfge.storage.files import StorageError

    headed = [
        (f"{run.name}: {table.heading}" if len(runs) > 1 else table.heading, table)
        for run in runs
        for table in report_tables(run)
    ]
    if not headed:
        raise StorageError(f"{', '.join(str(run.folder.path) for run in runs)} has no results yet")
    return headed


def _choose(
    headed: "list[tuple[str, Table]]", wanted: str | None, columns: str | None
) -> "list[tuple[str, Table]]":
    chosen = [(heading, table) for heading, table in headed if wanted in (None, table.key)]
    if not chosen:
        names = ", ".join(dict.fromkeys(table.key for _, table in headed))
        raise InvalidValueError(f"--table must be one of {names}, got {wanted!r}")
    if columns is None:
        return chosen
    begins = [name.strip() for name in columns.split(",")]
    for name in begins:
        if not any(table.only([name]) for _, table in chosen):
            known = dict.fromkeys(c.name or c.head for _, table in chosen for c in table.columns[1:])
            raise InvalidValueError(
                f"--columns must be the beginnings of column names ({'; '.join(known)}), got {name!r}"
            )
    return [(heading, kept) for heading, table in chosen if (kept := table.only(begins))]


def _write_tables(chosen: "list[tuple[str, Table]]", kind: str, out: Path | None) -> None:
    """Write or print tables. Each CSV table gets its own file, because programs expect one per file."""
    from pfge.reports.tables.table import PREAMBLE, to_csv, to_latex, to_markdown
    from pfge.storage.files import write_text

    if kind == "csv" and len(chosen) > 1:
        if out is None or out.is_file() or out.suffix == ".csv":
            keys = ", ".join(dict.fromkeys(table.key for _, table in chosen))
            raise InvalidValueError(
                f"a CSV file holds one table, got {len(chosen)} ({keys}); choose one with --table, or give a "
                f"folder as --out, got {out or 'nothing'}"
            )
        out.mkdir(parents=True, exist_ok=True)
        counts: Counter[str] = Counter()
        for _, table in chosen:
            counts[table.key] += 1
            number = f"-{counts[table.key]}" if counts[table.key] > 1 else ""
            file = out / f"{table.key}{number}.csv"
            write_text(file, to_csv(table))
            print(file)
        return
    if kind == "csv":
        text = to_csv(chosen[0][1])
    elif kind == "latex":
        text = "\n\n".join([PREAMBLE, *(to_latex(table) for _, table in chosen)]) + "\n"
    else:
        text = "\n\n".join(to_markdown(table, heading) for heading, table in chosen) + "\n"
    if out:
        write_text(out, text)
    else:
        print(text, end="")


def _draw(runs: "list[Run]", folder: Path) -> None:
    from pfge.reports.contents import report_figures

    try:
        from pfge.reports.figures.plots import save_figures
    except ImportError as error:
        raise InvalidValueError(str(error)) from None
    for number, run in enumerate(runs, 1):
        prefix = f"run-{number}-" if len(runs) > 1 else ""
        for file in save_figures(report_figures(run), folder, prefix):
            print(file)
