"""Runs of real commands in processes that tests kill."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.lab.forked_commands import ForkedCommand

PATIENCE = 300  # seconds, for a machine that is busy with something else
MODEL = """
from torch import nn

def net(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3),
        nn.Flatten(), nn.Linear(8 * 64, classes),
    )
"""
SETTINGS = (
    "seeds=[1]",
    "model.name=dropping:net",
    "data.crop_padding=1",
    "data.flip=true",
    "data.batch_norm_images=500",
    "pretrain.epochs=3",
    "ensemble.unit=iterations",
    "ensemble.cycle=10",
    "ensemble.period=30",
    "ensemble.length=120",
    "engine.checkpoint_seconds=0",  # after every update, so that no stage is over before it is killed
)
SHORTER = ("ensemble.cycle=5", "ensemble.period=15", "ensemble.length=60")


def command(out: Path, settings: Sequence[str]) -> list[str]:
    overrides = [part for setting in settings for part in ("--set", setting)]
    return ["compare", "--out", str(out), *overrides]


def start(folder: Path, out: Path, settings: Sequence[str] = SETTINGS) -> subprocess.Popen[str]:
    code = "import sys, torch; torch.set_num_threads(1); from pfge.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    pipe = subprocess.PIPE
    arguments = [sys.executable, "-c", code, *command(out, settings)]
    return subprocess.Popen(arguments, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def fork(folder: Path, out: Path, settings: Sequence[str] = SETTINGS) -> ForkedCommand:
    return ForkedCommand(command(out, settings), folder)


def finish(process: subprocess.Popen[str] | ForkedCommand) -> None:
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors


def processes_below(parent: int) -> dict[int, tuple[int, str]]:
    """Return the parents and command lines of all processes that a process started, and that those did."""
    found: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            above = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found[int(folder.name)] = (int(above), line)
    below, added = {parent}, True
    while added:
        more = {pid for pid, (above, _) in found.items() if above in below} - below
        below |= more
        added = bool(more)
    return {pid: found[pid] for pid in below - {parent} if pid in found}
