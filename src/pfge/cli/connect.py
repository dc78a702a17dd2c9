"""`pfge connect`: how well adjacent members are connected."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pfge.cli.setting_arguments import add_setting_arguments, add_trust_argument, given_settings

if TYPE_CHECKING:
    from pfge.cli.compare import SubParsers


def add_parser(commands: "SubParsers") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "connect",
        help="measure how well adjacent members of PFGE and of FGE are connected",
        description="Fit a curve of low loss between adjacent members of a finished comparison, and print "
        "test error and training loss along it and the mode connectivity. "
        "Running the same command again continues where it stopped.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run folder of pfge compare")
    parser.add_argument(
        "--pairs",
        type=_number_or_all,
        metavar="N",
        help="how many adjacent pairs of each ensemble, or all (default: all of PFGE's, as many of FGE's)",
    )
    parser.add_argument("--seed", type=int, default=0, help="decides which pairs those are (default: 0)")
    add_setting_arguments(parser, "connect.rate=0.01")
    add_trust_argument(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Connect the members, print the tables and draw the figure."""
    from pfge.cli.tables import print_connectivity
    from pfge.lab.experiments.connect import connect
    from pfge.lab.run.progress import Reporter
    from pfge.reports.figures.curves import draw_curves
    from pfge.storage.files import write_text

    rows = connect(
        options.folder,
        Reporter(),
        overrides=given_settings(options),
        trust_code=options.trust_code,
        pairs=options.pairs,
        choice_seed=options.seed,
    )
    figure = options.folder / "connectivity.svg"
    write_text(figure, draw_curves(rows))
    print_connectivity(rows, f"Figure: {figure}")
    return 0


def _number_or_all(text: str) -> int | Literal["all"]:
    return "all" if text == "all" else int(text)
