"""Runs that lie in docs/recorded: run folders without members, of which every table can be made again."""

import re
import shlex
import shutil
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from pfge.lab.config.toml import load_experiment, to_toml
from pfge.lab.run.folder import RunFolder
from pfge.reports.run import Run
from pfge.storage.files import (
    read_json_object,
    read_recorded,
    seal_text,
    write_json,
    write_tensors,
    write_text,
)
from site_extension.run_texts import AS_PREDICTED, AT_TEMPERATURE

DOCS = Path(__file__).parents[1]
RECORDED = DOCS / "recorded"


@cache
def recorded_run(name: str) -> Run:
    """Return a run of docs/recorded, of which everything can be read."""
    return _finished(RECORDED / name)


def is_recorded(name: str) -> bool:
    """Return whether there is such a run."""
    return (RECORDED / name).is_dir()


def record(source: Path, *, scores: bool = True) -> Path:
    """Copy what tables need of a finished run to docs/recorded, under its own name, and return where it is.

    Args:
        source: The run folder.
        scores: Whether to keep the scores of test examples, of which tables of differences are made. They
            take the most space.

    Raises:
        ValueError: The run is not finished.
    """
    run = _finished(source)
    target = RunFolder(RECORDED / run.name)
    shutil.rmtree(target.path, ignore_errors=True)
    target.path.mkdir(parents=True)
    for name in ("data", "results", "connectivity", "formats"):
        if (file := getattr(run.folder, name)).is_file():
            shutil.copyfile(file, getattr(target, name))
    _copy_config(run.folder, target)
    environment = read_json_object(run.folder.environment)
    write_json(target.environment, environment | {"command": without_folders(environment["command"])})
    if scores:
        _copy_scores(run, target)
    recorded_run.cache_clear()
    return target.path


def without_folders(command: str) -> str:
    """Return a command as a shell takes it, without the folders of the machine on which it ran."""
    command = re.sub(r" --out \S+", "", command)
    command = re.sub(r"\S+/(configs/\S+)", r"\1", command)
    return shlex.join(re.sub(r"(?<=[ =])/\S*/", "", command).split(" "))


def _finished(folder: Path) -> Run:
    run = Run(folder)
    if not run.results or run.left_out or run.missing():
        raise ValueError(f"{folder} must be a finished run, got {run.left_out or run.missing()}")
    return run


def _copy_config(source: RunFolder, target: RunFolder) -> None:
    weights = load_experiment(source.config).pretrain.weights
    experiment = load_experiment(source.config, [f"pretrain.weights={Path(weights).name}", "data.root="])
    write_text(target.config, seal_text(to_toml(experiment)))


def _copy_scores(run: Run, target: RunFolder) -> None:
    """Copy those that differences are made of, as numbers that are small and leave tables as they are."""
    for row in run.results:
        metrics = [metric for metric in row.task.metrics if metric.is_main]
        names = {name for metric in metrics for name in (metric.score, metric.weight)}
        wanted = {f"{part}.{name}" for part in (AS_PREDICTED, AT_TEMPERATURE) for name in names}
        found = read_recorded(run.folder.scores(row.seed, row.method))
        file = target.scores(row.seed, row.method)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(file, {name: _small(found[name]) for name in sorted(wanted & found.keys())})


def _small(values: Tensor) -> Tensor:
    is_count = bool(((values == 0) | (values == 1)).all())
    return values.to(torch.uint8 if is_count else torch.float32)
