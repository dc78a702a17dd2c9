"""The arguments that select a run, change the settings of an experiment, or trust those of a run."""

import argparse
from pathlib import Path


def add_run_arguments(parser: argparse.ArgumentParser, example: str = "data.root=/data") -> None:
    """Add the arguments that select a run folder, override its settings and trust its config."""
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run folder of pfge compare")
    add_setting_arguments(parser, example)
    add_trust_argument(parser)


def add_setting_arguments(parser: argparse.ArgumentParser, example: str) -> None:
    """Add the arguments that override settings; `example` is an override, as key=value."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"override a setting, such as {example}",
    )
    parser.add_argument("--download", action="store_true", help="download missing data")


def add_launcher_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says where parts of the work run."""
    parser.add_argument(
        "--on",
        metavar="LAUNCHER",
        help="same as --set engine.launcher=LAUNCHER: here, here:N for N processes on this machine, ray, "
        "ray:HOST:PORT or slurm",
    )


def prepare_workers(options: argparse.Namespace) -> None:
    """Start what `--on here:N` needs, so that workers import torch while this process does."""
    from pfge.lab.config.launcher import parse_launcher
    from pfge.lab.launch.fork_server import start_fork_server

    launcher = parse_launcher(options.on or "")
    if launcher is not None and launcher.processes > 1:
        start_fork_server()


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that makes a command trust the config of the run that it reads."""
    parser.add_argument(
        "--trust-code",
        action="store_true",
        help="import the functions and read the files that the run's config names; use only if you trust it",
    )


def given_settings(options: argparse.Namespace) -> list[str]:
    """Return the overrides in the arguments, as key=value."""
    download = ["data.download=true"] if options.download else []
    launcher = getattr(options, "on", None)
    return [*options.set, *download, *([f"engine.launcher={launcher}"] if launcher is not None else [])]
