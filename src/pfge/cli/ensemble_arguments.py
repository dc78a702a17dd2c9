"""The arguments of commands that use a saved ensemble with its data and its model."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.setting_arguments import add_setting_arguments, add_trust_argument, given_settings

if TYPE_CHECKING:
    from pfge.ensemble import Ensemble
    from pfge.lab.config.schema import Experiment
    from pfge.lab.session import Session

WHERE_FROM = "An ensemble in a run folder uses the run's data and model; any other needs --config or --set."


def add_ensemble_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select an ensemble, its data and its model."""
    parser.add_argument("ensemble", type=Path, metavar="ENSEMBLE", help="a folder with a manifest.json")
    parser.add_argument(
        "--config", type=Path, metavar="CONFIG", help="a .toml file to use instead of the run's config"
    )
    add_setting_arguments(parser, "data.name=mnist")
    add_trust_argument(parser)


def members_in_words(ensemble: "Ensemble") -> str:
    """Return the number of members, and that of the views in which they see pictures, if there are any."""
    views = f" in {len(ensemble.views)} views" if ensemble.views else ""
    return f"{len(ensemble)} member{'s' * (len(ensemble) > 1)}{views}"


def written_file(options: argparse.Namespace, name: str) -> Path:
    """Return the file that a command writes: --out, or one of that name in the ensemble's folder.

    Raises:
        ValueError: --out cannot be written, which is said before the long work starts.
    """
    out: Path = options.out or options.ensemble / name
    if options.out and (out.is_dir() or not out.parent.is_dir()):
        raise ValueError(
            f"--out must be a file in a folder that exists, got {out}; make the folder, or give another file"
        )
    return out


def is_in_run(ensemble: Path) -> bool:
    """Return whether an ensemble is in a run folder, whose config has its data and model."""
    from pfge.lab.run.folder import RunFolder

    return RunFolder.of_ensemble(ensemble) is not None


def open_session_of(options: argparse.Namespace) -> "Session":
    """Set up the experiment of an ensemble, from its run's config or the given one."""
    from pfge.lab.engine import Engine
    from pfge.lab.run.folder import RunFolder
    from pfge.lab.run.progress import Reporter
    from pfge.lab.session import Session

    experiment = load_experiment_of(options)
    return Session.set_up(experiment, RunFolder(options.ensemble), Engine(experiment.engine), Reporter())


def load_experiment_of(options: argparse.Namespace, *, reads_data: bool = True) -> "Experiment":
    """Read the config of an ensemble's run, or the given one.

    Args:
        options: Of the command.
        reads_data: As of `load_run_config`.
    """
    from pfge.lab.config.toml import load_experiment
    from pfge.lab.run.folder import RunFolder
    from pfge.storage.files import StorageError
    from pfge.storage.manifest import read_manifest

    settings = given_settings(options)
    if options.config:
        return load_experiment(options.config, settings)
    if run := RunFolder.of_ensemble(options.ensemble):
        return run.load_experiment(settings, trust_code=options.trust_code, reads_data=reads_data)
    if options.set:
        return load_experiment(None, settings)
    read_manifest(options.ensemble)  # reports first if it is not an ensemble at all
    raise StorageError(
        f"{options.ensemble} is not a run's RUN/seed-N/ensembles/METHOD, so its data and model are not "
        "known; give --config RUN/config.toml of its run, or --set data.name=... --set model.name=..."
    )
