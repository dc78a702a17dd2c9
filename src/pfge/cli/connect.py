"""`pfge connect`: measure how well adjacent members are connected."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pfge.cli.arguments import (
    add_launcher_argument,
    add_run_arguments,
    given_settings,
    prepare_workers,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pfge.lab.run.results import ConnectivityRow


HELP = "measure how well adjacent members of PFGE and of FGE are connected"
DESCRIPTION = """
Fit a curve of low loss between adjacent members of a finished comparison, and print test error and training
loss along it and the mode connectivity. Running the same command again continues where it stopped.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--pairs",
        type=_number_or_all,
        metavar="N",
        help="number of adjacent pairs of each ensemble, or all (default: all of PFGE, as many of FGE)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice of pairs (default: 0)")
    add_launcher_argument(parser)
    add_run_arguments(parser, "connect.rate=0.01")


def run(options: argparse.Namespace) -> int:
    """Connect the members, print the tables and draw the figure."""
    prepare_workers(options)

    from pfge.cli.tables import print_connectivity
    from pfge.lab.experiments.connect import connect
    from pfge.lab.run.progress import Reporter

    rows = connect(
        options.folder,
        Reporter(),
        overrides=given_settings(options),
        trust_code=options.trust_code,
        pairs=options.pairs,
        choice_seed=options.seed,
    )
    print_connectivity(rows, _draw(rows, options.folder))
    return 0


def _draw(rows: "Sequence[ConnectivityRow]", folder: Path) -> str:
    """Draw the curves if matplotlib is there, and say where they can be seen."""
    from pfge.reports.figures.path import curves

    try:
        from pfge.reports.figures.plots import save_figure
    except ImportError as error:
        return f"No figure: {error}; or see it on the page of pfge report {folder}"
    figure, file = curves(rows), folder / "connectivity.svg"
    if figure is None:
        return "No figure: nothing was measured"
    save_figure(figure, file)
    return f"Figure: {file}"


def _number_or_all(text: str) -> int | Literal["all"]:
    return "all" if text == "all" else int(text)
