"""`pfge pretrain`: train or load the start weights of a comparison."""

import argparse

from pfge.cli.experiment_arguments import add_experiment_arguments, load_chosen_experiment

HELP = "train or load the start weights w0 of a comparison"
DESCRIPTION = (
    "Train or load w0 for every seed, and print its file and its quality. `pfge compare` "
    "with the same arguments continues from it. "
    "Running the same command again continues where it stopped."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_experiment_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Train or load w0 and print its quality."""
    experiment, folder = load_chosen_experiment(options)

    from pfge.cli.tables import print_start_weights
    from pfge.lab.run.progress import Reporter
    from pfge.lab.training.pretrain import pretrain

    print_start_weights(pretrain(experiment, folder, Reporter()))
    return 0
