"""What is killed: small programs that write files and can be run again."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from pfge import Ensemble, Weights
from pfge.lab.data import registry
from pfge.packed import PackSettings, pack_members
from tests.lab.tiny import run, tiny
from tests.toys import make_mlp

registry.load_digits = cache(registry.load_digits)
registry.load_digits()  # once, and in no forked process again


@dataclass(frozen=True)
class Program:
    """Something that changes a folder.

    Args:
        run: Does it, in a folder that may not exist yet; once more, it goes on or does nothing.
        prepare: Makes the folder as it is before.
        varying: Files that differ from run to run.
    """

    run: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda _: None
    varying: tuple[str, ...] = ()


def save_plain(folder: Path) -> None:
    """Save an ensemble of two members."""
    Ensemble(_members(1, 2), make_mlp, method="new").save(folder)


def save_packed(folder: Path) -> None:
    """Save an ensemble of two packed members."""
    packed = pack_members(_members(1, 2), 3, PackSettings())
    Ensemble(packed, make_mlp, method="new").save(folder)


def save_old(folder: Path) -> None:
    """Save another ensemble, one member of which is also in the new one."""
    Ensemble(_members(0, 1), make_mlp, method="old").save(folder)


def compare(folder: Path) -> None:
    """Run the smallest comparison that has a shared path, one of its own, and what they leave to tidy up."""
    run(
        tiny(
            "model.name=tests.faults.programs:one_layer",
            "data.train_images=100",
            "data.test_images=50",
            "data.batch_size=50",
            "pretrain.epochs=0.5",
            "ensemble.methods=['SWA','PFGE']",
            "ensemble.cycle=1",
            "ensemble.period=1",
            "ensemble.length=2",
        ),
        folder,
    )


def one_layer(classes: int, channels: int) -> torch.nn.Module:
    """Return a model that is trained in no time."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * 64, classes))


PROGRAMS = {
    "save a new ensemble": Program(save_plain),
    "save over an ensemble": Program(save_plain, save_old),
    "save a new packed ensemble": Program(save_packed),
    "save packed over an ensemble": Program(save_packed, save_old),
    "compare": Program(compare, varying=("environment.json",)),
}


def _members(*seeds: int) -> list[Weights]:
    return [make_mlp(seed).state_dict() for seed in seeds]
