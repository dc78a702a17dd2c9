"""`pfge compare`: run every method from one w0."""

import argparse

from pfge.cli.experiment_arguments import add_experiment_arguments, load_chosen_experiment

HELP = "compare SWA, FGE, SWAG and PFGE from the same start weights"
DESCRIPTION = (
    "Train or load w0, run every method from it with equal rates and iterations, and print "
    "tables. Without CONFIG, use scikit-learn's digits and a small network, in about a minute. "
    "Running the same command again continues where it stopped."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_experiment_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the comparison and print its tables."""
    experiment, folder = load_chosen_experiment(options)

    from pfge.cli.tables import print_comparison
    from pfge.lab.experiments.compare import compare
    from pfge.lab.run.progress import Reporter

    rows = compare(experiment, folder, Reporter())
    print_comparison(rows, experiment, folder)
    return 0
