"""`pfge table`: the results of a run as Markdown."""

import argparse
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfge.cli.compare import SubParsers


def add_parser(commands: "SubParsers") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "table",
        help="print the results of a run as Markdown",
        description="Print the tables of a run, finished or not, and the command and machine they come from.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--part", choices=("test", "validation"), default="test", help="of the data")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table and where it comes from."""
    from pfge.lab.run.folder import RunFolder
    from pfge.lab.run.result_lines import read_rows
    from pfge.lab.run.results import ComparisonRow
    from pfge.reports.tables.comparison import to_markdown
    from pfge.reports.tables.run_tables import run_tables
    from pfge.storage.files import StorageError, read_json_object

    folder = RunFolder(options.folder)
    lines = read_rows(folder.results, ComparisonRow)
    for problem in lines.left_out:
        warnings.warn(problem, stacklevel=2)
    results = [row.to_json() for row in lines.rows if options.part in row.metrics]
    if not results:
        raise StorageError(
            f"{folder.path} holds no {options.part} results yet; run pfge compare --out {folder.path}"
        )
    environment = read_json_object(folder.environment) if folder.environment.is_file() else {}
    seeds = sorted({result["seed"] for result in results})
    for table in run_tables(folder, results, options.part):
        print(f"{to_markdown(table.columns, table.cells)}\n\n{table.note}\n")
    print(f"{options.part} set, seeds {', '.join(map(str, seeds))}{_describe(environment)}")
    return 0


def _describe(environment: dict[str, Any]) -> str:
    """Return the command and the machine, as far as they are known."""
    shown = {"command": "; `{}`", "torch": "; torch {}", "threads": ", {} threads", "processor": ", {}"}
    known = {key: value for key, value in environment.items() if isinstance(value, str | int)}
    return "".join(form.format(known[key]) for key, form in shown.items() if key in known)
