"""What commands that take checkpoints from disk have in common."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.setting_arguments import add_setting_arguments, given_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pfge.lab.session import Session
    from pfge.tasks import Task


def add_checkpoint_arguments(parser: argparse.ArgumentParser, out: str) -> None:
    """Add the arguments that name checkpoints, what is written, and the data if there is any."""
    parser.add_argument(
        "checkpoints",
        nargs="+",
        type=Path,
        metavar="CHECKPOINT",
        help="a .safetensors, .pt, .pth, .ckpt or .bin file, or a folder of the Hugging Face Trainer",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help=out)
    parser.add_argument(
        "--config", type=Path, metavar="CONFIG", help="a .toml file with the model and its data"
    )
    add_setting_arguments(parser, "data.root=/data")


def open_session_for(options: argparse.Namespace) -> "Session | None":
    """Set up the model and the data of --config or --set; None if neither is given."""
    if not options.config and not options.set:
        return None
    from pfge.lab.config.toml import load_experiment
    from pfge.lab.engine import Engine
    from pfge.lab.run.folder import RunFolder
    from pfge.lab.run.progress import Reporter
    from pfge.lab.session import Session

    experiment = load_experiment(options.config, given_settings(options))
    return Session.set_up(experiment, RunFolder(options.out), Engine(experiment.engine), Reporter())


def in_words(task: "Task", metrics: "Mapping[str, float]") -> str:
    """Return the main metrics in one line, as `accuracy 98.31 %, NLL 0.0538`."""
    shown = (metric for metric in task.metrics if metric.is_main)
    return ", ".join(
        f"{metric.label} {metric.factor * metrics[metric.name]:.{metric.digits}f} {metric.unit}".rstrip()
        for metric in shown
    )
