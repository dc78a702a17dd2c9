"""The arguments of commands that run an experiment."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.setting_arguments import add_setting_arguments, given_settings

if TYPE_CHECKING:
    from pfge.lab.config.schema import Experiment


def add_experiment_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select an experiment and its run folder."""
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="a .toml file")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the run folder (default: runs/NAME)")
    parser.add_argument("--seeds", metavar="1,2,3", help="same as --set seeds=[1,2,3]")
    add_setting_arguments(parser, "ensemble.high=0.1")


def load_chosen_experiment(
    options: argparse.Namespace, overrides: Sequence[str] = ()
) -> "tuple[Experiment, Path]":
    """Return the selected experiment, with further overrides, and its run folder."""
    from pfge.lab.config.toml import load_experiment

    seeds = [f"seeds=[{options.seeds}]"] if options.seeds else []
    experiment = load_experiment(options.config, [*given_settings(options), *seeds, *overrides])
    return experiment, options.out or Path("runs") / experiment.name
