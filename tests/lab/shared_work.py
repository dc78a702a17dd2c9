"""Work that several processes share, and that one process does alone."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

from pfge.cli.main import main
from pfge.lab.engine import Engine
from pfge.lab.evaluation.evaluate import evaluate_on
from pfge.lab.experiments.compare import compare_all
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session
from tests.lab.tiny import SETTINGS, Stopped, counted_steps, run, tiny

TWO = ("engine.accelerator=cpu", "engine.devices=2")
PLAIN = ("model.name=tests.lab.shared_work:plain_net",)
FIVE_BATCHES = "data.batch_norm_images=250"  # three for one process, two for the other


def plain_net(classes: int, channels: int) -> nn.Module:
    """A net without BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, classes)
    )


def measure_given(folder: Path, out: Path, *overrides: str) -> None:
    """Refresh BatchNorm of the members in a folder and measure them, as one process of however many."""
    experiment = tiny(FIVE_BATCHES, *overrides)
    engine = Engine(experiment.engine)
    session = Session.set_up(experiment, RunFolder(folder), engine, Reporter(quiet=True))
    fresh = session.refresh_batch_norm(session.load_ensemble(folder / "given"), 1, "")
    found = evaluate_on(session, fresh, session.splits.test, "", last=2)
    assert found.last is not None
    measured = {
        "pooled": found.growing[-1],
        "last": session.task.summarize(found.last.scores),
        "members": found.members,
        "growing": found.growing,
    }
    out.mkdir()
    fresh.save(out / "fresh")
    (out / "measured.json").write_text(json.dumps(measured))
    (out / "share.json").write_text(json.dumps(engine.rank_and_world_size))


def work(folder: Path) -> None:
    """What each of two processes does."""
    torch.set_num_threads(1)
    experiment = tiny(*PLAIN, *TWO, "engine.checkpoint_seconds=0")
    try:
        with counted_steps(stop_after=33):  # in PFGE's own part
            run(experiment, folder / "run")
    except Stopped:
        pass
    settings = [part for setting in (*SETTINGS, *PLAIN, *TWO) for part in ("--set", setting)]
    code = main(["compare", "--out", str(folder / "run"), *settings])
    measure_given(folder, folder / f"measured-{os.environ['RANK']}", *TWO)
    fail_in_the_first(folder)
    sys.exit(code)


def fail_in_the_first(folder: Path) -> None:
    """Compare in a folder of another config, and then in a new one, as one process of two."""
    few = (*PLAIN, *TWO, "ensemble.methods=[]")
    error = "none"
    try:
        compare_all([(tiny(*few), folder / "failing"), (tiny(*few), folder / "next")], Reporter(quiet=True))
    except (ValueError, RuntimeError) as caught:
        error = type(caught).__name__
    (folder / f"error-{os.environ['RANK']}.txt").write_text(error)
