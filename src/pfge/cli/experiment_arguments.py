"""The arguments of commands that run experiments."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.setting_arguments import add_launcher_argument, add_setting_arguments, given_settings

if TYPE_CHECKING:
    from pfge.lab.config.schema import Experiment

RUNS = Path("runs")


def add_experiment_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select experiments and their run folders."""
    parser.add_argument(
        "configs", nargs="*", type=Path, metavar="CONFIG", help=".toml files, or folders of them"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="the run folder (default: runs/NAME); of several experiments, the one that holds their folders",
    )
    parser.add_argument("--seeds", metavar="1,2,3", help="same as --set seeds=[1,2,3]")
    add_launcher_argument(parser)
    add_setting_arguments(parser, "ensemble.high=0.1")


def load_chosen_experiments(options: argparse.Namespace) -> "list[tuple[Experiment, Path]]":
    """Return the selected experiments, each with its run folder.

    Raises:
        ConfigError: A folder has no config, or two experiments have the same name or other launchers.
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
    from pfge.lab.config.schema import ConfigError

    for path in given:
        if not path.is_dir():
            yield path
        elif found := sorted(path.glob("*.toml")):
            yield from found
        else:
            raise ConfigError(f"{path} must have .toml files, and has none; give a config, or its folder")


def _require_different(experiments: "Sequence[Experiment]", files: Sequence[Path]) -> None:
    from pfge.lab.config.schema import ConfigError

    names: dict[str, Path] = {}
    for experiment, file in zip(experiments, files, strict=True):
        if experiment.name in names:
            raise ConfigError(
                f"{names[experiment.name]} and {file} have the same name = {experiment.name!r}, which is "
                "that of the run folder; give each its own name"
            )
        names[experiment.name] = file
    launchers = sorted({experiment.engine.launcher for experiment in experiments})
    if len(launchers) > 1:
        raise ConfigError(
            "experiments that run at once must have the same engine.launcher, got "
            f"{' and '.join(launchers)}; give --on"
        )
