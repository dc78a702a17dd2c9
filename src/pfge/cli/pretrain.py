"""`pfge pretrain`: the start weights of a comparison."""

import argparse
from typing import TYPE_CHECKING

from pfge.cli.experiment_arguments import add_experiment_arguments, load_chosen_experiment

if TYPE_CHECKING:
    from pfge.cli.compare import SubParsers


def add_parser(commands: "SubParsers") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "pretrain",
        help="find the start weights w0 of a comparison",
        description="Find w0 for every seed, and print where it is and what it is worth. `pfge compare` "
        "with the same arguments then goes on from there. "
        "Running the same command again continues where it stopped.",
    )
    add_experiment_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Find w0 and print its worth."""
    experiment, folder = load_chosen_experiment(options)

    from pfge.cli.tables import print_start_weights
    from pfge.lab.run.progress import Reporter
    from pfge.lab.training.pretrain import pretrain

    print_start_weights(pretrain(experiment, folder, Reporter()))
    return 0
