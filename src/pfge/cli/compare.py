"""`pfge compare`: every method of the paper from one w0."""

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
        description="Find w0, run every method from it at equal rates and iterations, and print a table. "
        "Without CONFIG: scikit-learn's digits and a small network, in under a minute. "
        "Running the same command again continues where it stopped.",
    )
    add_experiment_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the comparison and print its table."""
    experiment, folder = load_chosen_experiment(options)

    from pfge.cli.tables import print_comparison
    from pfge.lab.experiments.compare import compare
    from pfge.lab.run.progress import Reporter

    rows = compare(experiment, folder, Reporter())
    print_comparison(rows, experiment, folder)
    return 0
