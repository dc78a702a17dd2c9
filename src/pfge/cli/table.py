"""`pfge table`: print the results of a run as Markdown."""

import argparse
from pathlib import Path
from typing import Any

HELP = "print the results of a run as Markdown"
DESCRIPTION = "Print the tables of a run, finished or not, with the command and machine of the run."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--part", choices=("test", "validation"), default="test", help="part of the data (default: test)"
    )


def run(options: argparse.Namespace) -> int:
    """Print the tables, the command and the machine."""
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
    print(f"{options.part} set, seeds {', '.join(map(str, seeds))}{_describe(found.environment)}")
    return 0


def _describe(environment: dict[str, Any]) -> str:
    """Return the command and the machine, as far as they are known."""
    shown = {"command": "; `{}`", "torch": "; torch {}", "threads": ", {} threads", "processor": ", {}"}
    known = {
        key: str(value).replace("`", "'")
        for key, value in environment.items()
        if isinstance(value, str | int)
    }
    return "".join(form.format(known[key]) for key, form in shown.items() if key in known)
