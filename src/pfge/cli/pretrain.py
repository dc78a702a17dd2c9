"""`pfge pretrain`: train or load the start weights of a comparison."""

import argparse
from dataclasses import replace

from pfge.cli.arguments import add_experiment_arguments, load_chosen_experiments, prepare_workers

HELP = "train or load the start weights w0 of a comparison"
DESCRIPTION = """
Train or load w0 for every seed, and print its file and its quality. `pfge compare` with the same arguments
continues from it. Running the same command again continues where it stopped.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_experiment_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Train or load w0 and print its quality."""
    prepare_workers(options)
    chosen = load_chosen_experiments(options)

    from pfge.cli.tables import print_start_weights
    from pfge.lab.experiments.compare import find_all_w0
    from pfge.lab.run.progress import Reporter
    from pfge.lab.training.pretrain import pretrain

    if not chosen[0][0].engine.chosen_launcher.is_this_process:
        find_all_w0(chosen, Reporter())
    for experiment, folder in chosen:
        here = replace(experiment, engine=replace(experiment.engine, launcher="here"))
        print_start_weights(pretrain(here, folder, Reporter()))
    return 0
