"""Arguments that several commands share."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.errors import InvalidValueError
from pfge.lab.config.launchers import LAUNCHER_USAGE, parse_launcher

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pfge.ensemble import Ensemble
    from pfge.lab.config.settings import Experiment
    from pfge.lab.session import Session
    from pfge.tasks import Task


RUNS = Path("runs")
UNITS = {"kB": 1000, "MB": 1000**2, "GB": 1000**3, "": 1}
WHERE_FROM = "An ensemble in a run folder uses the run's data and model; any other needs --config or --set."


@dataclass(frozen=True)
class Command:
    """A subcommand of `pfge`.

    Attributes:
        name: The word after `pfge`.
        summary: One line for the list of commands.
        description: Text at the top of the command's own help.
        add_arguments: Function that adds the command's arguments to its parser.
        run: Function that runs the command with the parsed arguments and returns the exit code.
    """

    name: str
    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def command(
    summary: str, add_arguments: Callable[[argparse.ArgumentParser], None]
) -> Callable[[Callable[[argparse.Namespace], int]], Command]:
    """Make a command of the decorated function, with its name and its docstring as the description."""
    return lambda run: Command(run.__name__, summary, run.__doc__ or "", add_arguments, run)


def parse_bytes(text: str) -> int:
    """Return the number of bytes in a string such as 700kB, 2MB or 1000."""
    unit = next(unit for unit in UNITS if text.endswith(unit))
    try:
        return round(float(text.removesuffix(unit)) * UNITS[unit])
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes such as 700kB or 2MB") from None


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
    """Add the argument that chooses where units of work run."""
    parser.add_argument(
        "--launcher",
        metavar="LAUNCHER",
        help=f"same as --set engine.launcher=LAUNCHER: {LAUNCHER_USAGE}",
    )


def prepare_workers(options: argparse.Namespace) -> None:
    """Start the fork server for `--launcher here:N` early: workers import torch while this process does."""
    from pfge.lab.launch.processes import start_fork_server

    launcher = parse_launcher(options.launcher or "")
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
    launcher = getattr(options, "launcher", None)
    return [*options.set, *download, *([f"engine.launcher={launcher}"] if launcher is not None else [])]


def add_experiment_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select experiments and their run folders."""
    parser.add_argument(
        "configs", nargs="*", type=Path, metavar="CONFIG", help=".toml files, or folders of them"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="the run folder (default: runs/NAME); for several experiments, the folder of their run folders",
    )
    parser.add_argument("--seeds", metavar="1,2,3", help="same as --set seeds=[1,2,3]")
    add_launcher_argument(parser)
    add_setting_arguments(parser, "ensemble.high=0.1")


def load_chosen_experiments(options: argparse.Namespace) -> "list[tuple[Experiment, Path]]":
    """Return the selected experiments, each with its run folder.

    Raises:
        ConfigError: A folder has no config, or two experiments have the same name or different launchers.
    """
    from pfge.lab.config.toml import load_experiment

    seeds = [f"seeds=[{options.seeds}]"] if options.seeds else []
    overrides = [*given_settings(options), *seeds]
    if not options.configs:
        experiment = load_experiment(None, overrides)
        return [(experiment, options.out or RUNS / experiment.name)]
    files = list(_config_files(options.configs))
    experiments = [load_experiment(file, overrides) for file in files]
    if files == options.configs and len(files) == 1:
        return [(experiments[0], options.out or RUNS / experiments[0].name)]
    _require_different(experiments, files)
    return [(experiment, (options.out or RUNS) / experiment.name) for experiment in experiments]


def _config_files(given: Sequence[Path]) -> Iterator[Path]:
    from pfge.lab.config.settings import ConfigError

    for path in given:
        if not path.is_dir():
            yield path
        elif found := sorted(path.glob("*.toml")):
            yield from found
        else:
            raise ConfigError(f"{path} does not contain .toml files; give a config, or a folder of configs")


def _require_different(experiments: "Sequence[Experiment]", files: Sequence[Path]) -> None:
    from pfge.lab.config.settings import ConfigError

    names: dict[str, Path] = {}
    for experiment, file in zip(experiments, files, strict=True):
        if experiment.name in names:
            raise ConfigError(
                f"{names[experiment.name]} and {file} have the same name = {experiment.name!r}, and "
                "would use the same run folder; give each its own name"
            )
        names[experiment.name] = file
    launchers = sorted({experiment.engine.launcher for experiment in experiments})
    if len(launchers) > 1:
        raise ConfigError(
            "experiments that run at once must have the same engine.launcher, got "
            f"{' and '.join(launchers)}; choose one with --launcher"
        )


def add_checkpoint_arguments(parser: argparse.ArgumentParser, out: str) -> None:
    """Add the arguments that name checkpoints, the output and, if needed, the data."""
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


def require_new_folder(options: argparse.Namespace) -> None:
    """Before any work, refuse an --out that cannot be written or would replace a checkpoint.

    Raises:
        StorageError: --out is a file, contains other files than an ensemble, or is or contains a checkpoint.
    """
    from pfge.storage.ensemble_folder import prepare_for_overwrite
    from pfge.storage.files import StorageError

    out: Path = options.out
    for path in options.checkpoints:
        if out.resolve() in (path.resolve(), *path.resolve().parents):
            raise StorageError(
                f"--out must not be or contain a checkpoint, got {out} for {path}; choose another folder"
            )
    prepare_for_overwrite(out)


def open_session_for(options: argparse.Namespace) -> "Session | None":
    """Set up the model and the data of --config or --set. Return None if neither is given."""
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


def add_ensemble_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select an ensemble, its data and its model."""
    parser.add_argument("ensemble", type=Path, metavar="ENSEMBLE", help="a folder with a manifest.json")
    parser.add_argument(
        "--config", type=Path, metavar="CONFIG", help="a .toml file to use instead of the run's config"
    )
    add_setting_arguments(parser, "data.name=mnist")
    add_trust_argument(parser)
    parser.description = f"{parser.description} {WHERE_FROM}"


def members_in_words(ensemble: "Ensemble") -> str:
    """Return the number of members in words, and the number of views if the ensemble uses views."""
    views = f" in {len(ensemble.views)} views" if ensemble.views else ""
    return f"{len(ensemble)} member{'s' * (len(ensemble) > 1)}{views}"


def written_file(options: argparse.Namespace, name: str) -> Path:
    """Return the file that a command writes: --out, or the file called `name` in the ensemble's folder.

    Raises:
        InvalidValueError: --out cannot be written. Raised before the long work starts.
    """
    if not options.out:
        return Path(options.ensemble / name)
    require_writable_file(options.out, "--out")
    return Path(options.out)


def require_writable_file(file: Path, argument: str) -> None:
    """Refuse a path that is a folder, or in a folder that does not exist.

    Raises:
        InvalidValueError: The path cannot be written as a file.
    """
    if file.is_dir() or not file.parent.is_dir():
        raise InvalidValueError(
            f"{argument} must be a file in a folder that exists, got {file}; make the folder, or give "
            "another file"
        )


def require_other_folder(options: argparse.Namespace) -> None:
    """Refuse to write a copy of an ensemble over the ensemble.

    Raises:
        InvalidValueError: OUT and ENSEMBLE are the same folder.
    """
    if options.ensemble.resolve() == options.out.resolve():
        raise InvalidValueError(f"OUT and ENSEMBLE must be different folders, got {options.out} for both")


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


def load_saved_ensemble(session: "Session", folder: Path) -> "Ensemble":
    """Return the ensemble of a folder. If a comparison did not save it (w0, last members), save it there."""
    ensemble = session.load_ensemble(folder)
    if not folder.exists():
        session.engine.on_rank_zero(lambda: ensemble.save(folder))
    return ensemble


def load_experiment_of(options: argparse.Namespace, *, reads_data: bool = True) -> "Experiment":
    """Read the config of an ensemble's run, or the given one.

    Args:
        options: Parsed arguments of the command.
        reads_data: See `RunFolder.load_experiment`.
    """
    from pfge.lab.config.toml import load_experiment
    from pfge.lab.run.folder import RunFolder
    from pfge.storage.ensemble_folder import read_manifest
    from pfge.storage.files import StorageError

    settings = given_settings(options)
    if options.config:
        return load_experiment(options.config, settings)
    if run := RunFolder.of_ensemble(options.ensemble):
        return run.load_experiment(settings, trust_code=options.trust_code, reads_data=reads_data)
    if options.set:
        return load_experiment(None, settings)
    read_manifest(options.ensemble)  # raises if it is not an ensemble at all
    raise StorageError(
        f"{options.ensemble} is not a run's RUN/seed-N/ensembles/METHOD, so its data and model are not "
        "known; give --config RUN/config.toml of its run, or --set data.name=... --set model.name=..."
    )
