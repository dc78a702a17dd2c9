"""`pfge compare`: run every method from one w0."""

import argparse
from typing import TYPE_CHECKING

from pfge.cli.experiment_arguments import add_experiment_arguments, load_chosen_experiment

if TYPE_CHECKING:
    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(commands: "SubParsers") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "compare",
        help="compare SWA, FGE, SWAG and PFGE from the same start weights",
        description="Train or load w0, run every method from it with equal rates and iterations, and print "
        "tables. Without CONFIG, use scikit-learn's digits and a small network, in about a minute. "
        "Running the same command again continues where it stopped.",
    )
    add_experiment_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the comparison and print its tables."""
    experiment, folder = load_chosen_experiment(options)

    from pfge.cli.tables import print_comparison
    from pfge.lab.experiments.compare import compare
    from pfge.lab.run.progress import Reporter

    rows = compare(experiment, folder, Reporter())
    print_comparison(rows, experiment, folder)
    return 0
