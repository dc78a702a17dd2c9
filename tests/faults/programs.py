"""What is struck: small programs that write files and can be run again."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch

from pfge import PFGE, Ensemble, Trajectory, Triangular, Weights, load_checkpoint, save_checkpoint
from pfge.cli import tables
from pfge.cli.main import main
from pfge.collectors.stores import FolderStore
from pfge.lab.data import registry
from pfge.packed import PackSettings, pack_members
from tests.lab.tiny import SETTINGS
from tests.toys import classification_loss, make_batch, make_mlp, make_sgd

registry.load_digits = cache(registry.load_digits)
registry.load_digits()  # once, and in no forked process again


@dataclass(frozen=True)
class Program:
    """Something that changes a folder.

    Args:
        run: Does it, in a folder that may not exist yet, and returns its exit code; once more, it goes on or
            does nothing.
        prepare: Makes the folder as it is before.
        varying: Files that differ from run to run.
    """

    run: Callable[[Path], int]
    prepare: Callable[[Path], int] = lambda _: 0
    varying: tuple[str, ...] = ()


SMALLEST = (
    "model.name=tests.faults.programs:one_layer",
    "data.train_images=100",
    "data.test_images=20",
    "data.batch_size=50",
    "pretrain.epochs=1",
    "ensemble.methods=['SWA','PFGE']",
    "ensemble.cycle=1",
    "ensemble.period=1",
    "ensemble.length=2",
    "connect.length=1",
    "connect.points=3",
    "engine.checkpoint_seconds=0",
)
"""Of the smallest comparison that has a shared path, one of its own, and what they leave to tidy up."""


def one_layer(classes: int, channels: int) -> torch.nn.Module:
    """Return a model that is trained in no time."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * 64, classes))


def command(*arguments: str) -> int:
    """Run a `pfge` command without its tables: they take a quarter of the time, after the last change."""
    names = ("print_comparison", "print_connectivity", "print_formats")
    with patch.multiple(tables, **dict.fromkeys(names, lambda *_: None)):
        return main(arguments)


def experiment(name: str, folder: Path, *others: str) -> int:
    """Run a command on an experiment in FOLDER/run."""
    settings = (*SETTINGS, *SMALLEST, *others)
    overrides = [part for setting in settings for part in ("--set", setting)]
    return command(name, "--out", str(folder / "run"), *overrides)


def pretrain(folder: Path) -> int:
    """Train w0."""
    return experiment("pretrain", folder)


def compare(folder: Path) -> int:
    """Compare two methods."""
    return experiment("compare", folder)


def compare_rarely_saved(folder: Path) -> int:
    """Compare methods with a row of the last members, and without a checkpoint before the end of a path."""
    return experiment("compare", folder, "ensemble.methods=['FGE','PFGE']", "engine.checkpoint_seconds=1e9")


def compare_one(folder: Path) -> int:
    """Run the comparison that other commands read."""
    cascades = "data.validation_from_test=true"  # which need validation data
    return experiment("compare", folder, "ensemble.methods=['PFGE']", cascades)


def connect(folder: Path) -> int:
    """Fit and trace the curve between two members."""
    return command("connect", str(folder / "run"), "--trust-code")


def formats(folder: Path) -> int:
    """Measure storage formats and cascades."""
    return command("formats", str(folder / "run"), "--trust-code")


def compress(folder: Path) -> int:
    """Write a packed copy of an ensemble."""
    return main(
        ["compress", str(folder / "run" / "seed-1" / "ensembles" / "PFGE"), str(folder / "copies" / "packed")]
    )


def own_loop(folder: Path) -> int:
    """Train by a loop as a user writes it, which keeps members in a folder and checkpoints itself."""
    folder.mkdir(exist_ok=True)
    checkpoint = folder / "run.checkpoint"
    model = make_mlp(0)
    collector = PFGE(cycle=1, period=2, store=FolderStore(folder / "members"))
    trajectory = Trajectory(model, make_sgd(model), Triangular(2, 0.01, 0.1), [collector])
    if checkpoint.exists():
        trajectory.load_state_dict(load_checkpoint(checkpoint))
    else:
        save_checkpoint(checkpoint, trajectory.state_dict())
    while trajectory.iteration < 4:
        torch.manual_seed(trajectory.iteration)
        trajectory.optimizer.zero_grad()
        classification_loss(model, make_batch(trajectory.iteration)).backward()
        trajectory.before_update()
        trajectory.optimizer.step()
        trajectory.after_update()
        save_checkpoint(checkpoint, trajectory.state_dict())
    ensemble = Ensemble.from_collector(collector, make_mlp).with_fresh_batch_norm([make_batch(0)])
    ensemble.save(folder / "ensemble")
    return 0


def save_plain(folder: Path) -> int:
    """Save an ensemble of two members."""
    Ensemble(_members(1, 2), make_mlp, method="new").save(folder)
    return 0


def save_packed(folder: Path) -> int:
    """Save an ensemble of two packed members."""
    packed = pack_members(_members(1, 2), 3, PackSettings())
    Ensemble(packed, make_mlp, method="new").save(folder)
    return 0


def save_old(folder: Path) -> int:
    """Save another ensemble, one member of which is also in the new one."""
    Ensemble(_members(0, 1), make_mlp, method="old").save(folder)
    return 0


def in_one_line(work: Callable[[Path], int]) -> Callable[[Path], int]:
    """Return work whose errors of the library are said as the command says them."""

    def run(folder: Path) -> int:
        try:
            return work(folder)
        except (ValueError, OSError, MemoryError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except RuntimeError as error:
            if "allocate memory" not in str(error):  # by torch, where Python has a MemoryError
                raise
            print(f"error: {error}".splitlines()[0], file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130

    return run


_ENVIRONMENT = ("run/environment.json",)
COMMANDS = {
    "own loop": Program(in_one_line(own_loop)),
    "pretrain": Program(pretrain, varying=_ENVIRONMENT),
    "compress": Program(compress, compare_one),
    "formats": Program(formats, compare_one),
    "compare": Program(compare, varying=_ENVIRONMENT),
    "compare, rarely saved": Program(compare_rarely_saved, varying=_ENVIRONMENT),
    "connect": Program(connect, compare_one),
}
"""Those that import most come last, as a large process takes longer to fork."""
SAVES = {
    "save a new ensemble": Program(in_one_line(save_plain)),
    "save over an ensemble": Program(in_one_line(save_plain), save_old),
    "save a new packed ensemble": Program(in_one_line(save_packed)),
    "save packed over an ensemble": Program(in_one_line(save_packed), save_old),
}
PROGRAMS = {**SAVES, **COMMANDS}


def _members(*seeds: int) -> list[Weights]:
    return [make_mlp(seed).state_dict() for seed in seeds]
