"""The arguments of commands that use a saved ensemble with its data and its model."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pfge.lab.session import Session

WHERE_FROM = "An ensemble in a run folder has the run's data and model; any other needs --config, or --set."


def add_ensemble_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which ensemble, and which data and model it has."""
    parser.add_argument("ensemble", type=Path, metavar="ENSEMBLE", help="a folder with a manifest.json")
    parser.add_argument("--config", type=Path, metavar="CONFIG", help="a .toml file, if not that of the run")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a setting, as data.name=mnist",
    )
    parser.add_argument("--download", action="store_true", help="fetch data that is missing")


def find_config(options: argparse.Namespace) -> Path | None:
    """Return the config that is given, or that of the run which the ensemble lies in, if it lies in one."""
    from pfge.lab.run.folder import CONFIG

    given: Path | None = options.config
    parents = options.ensemble.resolve().parents
    return given or next((p / CONFIG for p in parents if (p / CONFIG).is_file()), None)


def open_session_of(options: argparse.Namespace) -> "Session":
    """Set up the experiment that an ensemble belongs to, by its run's config or the one that is given."""
    from pfge.lab.config.toml import load_experiment
    from pfge.lab.engine import Engine
    from pfge.lab.run.folder import RunFolder
    from pfge.lab.run.progress import Reporter
    from pfge.lab.session import Session
    from pfge.storage.files import StorageError

    folder: Path = options.ensemble
    config = find_config(options)
    if config is None and not options.set:
        raise StorageError(
            f"{folder} is in no run folder, so its data and model are not known; give --config CONFIG, or "
            "--set data.name=... --set model.name=..."
        )
    overrides = [*options.set, *(["data.download=true"] if options.download else [])]
    experiment = load_experiment(config, overrides)
    engine = Engine(experiment.engine)
    return Session.set_up(experiment, RunFolder(folder), engine, Reporter(quiet=not engine.is_first))
