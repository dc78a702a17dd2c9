"""The arguments of commands that run an experiment."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pfge.lab.config.schema import Experiment


def add_experiment_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which experiment, and where."""
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="a .toml file")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the run folder (default: runs/NAME)")
    parser.add_argument("--seeds", metavar="1,2,3", help="the same as --set seeds=[1,2,3]")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a setting, as ensemble.high=0.1",
    )
    parser.add_argument("--download", action="store_true", help="fetch data that is missing")


def load_chosen_experiment(options: argparse.Namespace) -> "tuple[Experiment, Path]":
    """Return the experiment that the arguments name, and its run folder."""
    from pfge.lab.config.toml import load_experiment

    overrides = [*options.set]
    overrides += [f"seeds=[{options.seeds}]"] if options.seeds else []
    overrides += ["data.download=true"] if options.download else []
    experiment = load_experiment(options.config, overrides)
    return experiment, options.out or Path("runs") / experiment.name
