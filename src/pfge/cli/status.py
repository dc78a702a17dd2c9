"""`pfge status`: which parts of a comparison are done, running, waiting or failed."""

import argparse
from pathlib import Path

HELP = "say which parts of a comparison are done, running, waiting or failed"
DESCRIPTION = """
Print how far each part of comparisons is, and why parts failed. Only files of the run are read, so it may
be asked at any time and from any machine that has the folder.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="a run folder")


def run(options: argparse.Namespace) -> int:
    """Print a line for each part, and how many there are of each kind."""
    for path in options.folders:
        if len(options.folders) > 1:
            print(f"{path}:")
        _print_states(path)
    return 0


def _print_states(path: Path) -> None:
    from pfge.lab.experiments.compare import units_of_run
    from pfge.lab.launch.units import find_states
    from pfge.lab.run.folder import RunFolder

    folder = RunFolder(path)
    states = find_states(folder, units_of_run(folder))
    for found in states:
        print(f"{found.state:<8} {found.name}{f': {found.note}' if found.note else ''}")
    kinds = ("done", "running", "waiting", "failed")
    counts = ", ".join(f"{sum(found.state == kind for found in states)} {kind}" for kind in kinds)
    print(f"{counts}; {'a process works on it' if folder.is_in_use() else 'no process works on it'}")
