"""`pfge table`: the results of a run as Markdown."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

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
    from pfge.lab.run.results import read_results
    from pfge.reports.tables.comparison import to_markdown
    from pfge.reports.tables.run_tables import run_tables
    from pfge.storage.files import StorageError, read_json_object

    folder = RunFolder(options.folder)
    results = [result for result in read_results(folder.results) if options.part in result]
    if not results:
        raise StorageError(
            f"{folder.path} holds no {options.part} results yet; run pfge compare --out {folder.path}"
        )
    environment = read_json_object(folder.environment)
    seeds = sorted({result["seed"] for result in results})
    for table in run_tables(folder, results, options.part):
        print(f"{to_markdown(table.columns, table.cells)}\n\n{table.note}\n")
    print(
        f"{options.part} set, seeds {', '.join(map(str, seeds))}; `{environment['command']}`; torch "
        f"{environment['torch']}, {environment['threads']} threads, {environment['processor']}"
    )
    return 0
