"""A comparison small enough to be run many times in a test."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from pfge.lab.config.settings import Experiment
from pfge.lab.config.toml import load_experiment
from pfge.lab.experiments.compare import compare
from pfge.lab.models import build_model
from pfge.lab.run.progress import Reporter
from pfge.storage.files import unseal

SETTINGS = (
    "name=tiny",
    "seeds=[1]",
    "data.batch_norm_images=100",
    "pretrain.epochs=0.5",  # 10 iterations
    "ensemble.unit=iterations",
    "ensemble.cycle=2",
    "ensemble.period=4",
    "ensemble.length=16",
)
PRETRAINING = 10
LENGTH = 16
PERIOD = 4


def tiny(*overrides: str) -> Experiment:
    """Return an experiment on digits that takes part of a second."""
    return load_experiment(None, [*SETTINGS, *overrides])


def run(experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    """Run a comparison and return its results as they are in the file."""
    return [row.to_json() for row in compare(experiment, folder, Reporter(quiet=True))]


class Stopped(Exception):  # noqa: N818 - no error of the product
    """Stands for the end of a process."""


@contextmanager
def counted_steps(stop_after: int | None = None) -> Iterator[list[int]]:
    """Count the steps of all optimizers in the list's only entry; stop after one of them if asked to."""
    count = [0]

    def note(*_: object) -> None:
        count[0] += 1
        if count[0] == stop_after:
            raise Stopped

    handle = register_optimizer_step_post_hook(note)
    try:
        yield count
    finally:
        handle.remove()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results without their digests, which must be right."""
    return [unseal(json.loads(line)) for line in path.read_text().splitlines()]


def outcome(folder: Path) -> dict[str, bytes]:
    """Return the bytes of everything that a finished run is for."""
    files = [
        folder / "results.jsonl",
        folder / "results.lines.json",
        *folder.glob("seed-*/w0.safetensors"),
        *folder.glob("seed-*/ensembles/*/*"),
        *folder.glob("seed-*/scores/*"),
    ]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def small_conv() -> nn.Module:
    """Return a model that `model.name=small_conv` names, for digits."""
    return build_model("small_conv", classes=10, channels=1)
