"""Every method from one w0, with the same rates and iterations, and what each is worth."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pfge.collectors import Collector
from pfge.lab.config.schema import Experiment
from pfge.lab.evaluation.record import (
    expected_rows,
    is_saved,
    measured_rows,
    record_collected,
    record_ensemble,
)
from pfge.lab.experiments.baselines import make_deep_ensemble, make_mc_dropout
from pfge.lab.run.progress import Reporter
from pfge.lab.run.results import read_results
from pfge.lab.session import Bench, make_sgd, open_bench
from pfge.lab.training.follower_store import FollowerStore
from pfge.lab.training.fork import Branch
from pfge.lab.training.pretrain import find_w0
from pfge.lab.training.resumable import walk
from pfge.methods import LISTENERS, Setting, make_collector
from pfge.schedules import Schedule
from pfge.storage.checkpoint import save_checkpoint
from pfge.trajectory import Trajectory
from pfge.weights import Weights, load_weights

SHARED = "shared.checkpoint"
ALONE = "pfge.storage.checkpoint"
BRANCH = "branch.checkpoint"
SNAPSHOT = "snapshot.checkpoint"
MEMBERS = "members"


def compare(experiment: Experiment, path: Path, reporter: Reporter) -> list[dict[str, Any]]:
    """Run or continue a comparison in a folder, and return all its results."""
    with open_bench(experiment, path, reporter) as bench:
        for seed in experiment.seeds:
            _compare_one(bench, seed)
    return read_results(bench.folder.results)


def _compare_one(bench: Bench, seed: int) -> None:
    measured = measured_rows(bench, seed)
    if not measured >= expected_rows(bench.experiment.ensemble.methods):
        _run_methods(bench, seed, measured)
    bench.engine.first_does(lambda: _tidy(bench.folder.of_seed(seed)))


def _run_methods(bench: Bench, seed: int, measured: set[str]) -> None:
    methods = bench.experiment.ensemble.methods
    w0 = find_w0(bench, seed)
    if "w0" not in measured:
        record_ensemble(bench, seed, "w0", bench.make_ensemble([w0], method="w0", iterations=[0]))
    setting = bench.experiment.ensemble.setting(bench.batches(seed, "ensembling").per_epoch)
    bench.engine.first_does(lambda: _forget_members(bench.folder.of_seed(seed)))
    listeners = {
        name: _make_collector(bench, seed, setting, name)
        for name in dict.fromkeys(method.rstrip("*") for method in methods)
        if name in LISTENERS
    }
    rows = {name: name if name in methods else f"{name}*" for name in listeners}
    # An ensemble that is there only has to be measured: who removes the results can have them anew.
    if any(not is_saved(bench, seed, row) for row in rows.values()):
        _walk_together(bench, seed, setting, w0, [*listeners.values()], branches="PFGE" in methods)
    for name, row in rows.items():
        if row not in measured:
            record_collected(bench, seed, setting, row, listeners[name])
    waiting = [name for name in methods if name not in measured]
    for name in ("PFGE", "Snapshot"):
        if name in waiting:
            collector = _make_collector(bench, seed, setting, name)
            if not is_saved(bench, seed, name):
                _walk_alone(bench, seed, setting, w0, name, collector)
            record_collected(bench, seed, setting, name, collector)
    if "DeepEnsemble" in waiting:
        make_deep_ensemble(bench, seed, w0, setting.members)
    if "MCDropout" in waiting:
        make_mc_dropout(bench, seed, w0, setting.members)


def _walk_together(
    bench: Bench, seed: int, setting: Setting, w0: Weights, listeners: list[Collector], *, branches: bool
) -> None:
    """Follow the one path that all listeners watch, and note where PFGE's leaves it."""
    folder = bench.folder.of_seed(seed)
    branch = Branch(_make_collector(bench, seed, setting, "PFGE")) if branches else None
    collectors = [*listeners, branch] if branch else listeners
    trajectory = _make_trajectory(bench, setting.schedule(), w0, collectors)

    def note_branch() -> None:
        if branch and (state := branch.state(trajectory)) and bench.engine.is_first:
            save_checkpoint(folder / BRANCH, state)

    names = ", ".join(str(listener).partition("(")[0] for listener in listeners)
    _walk(bench, seed, setting, trajectory, names, SHARED, on_update=note_branch)


def _walk_alone(
    bench: Bench, seed: int, setting: Setting, w0: Weights, name: str, collector: Collector
) -> None:
    """Follow a method's own path: PFGE's from where it leaves the shared one, if anybody shares."""
    trajectory = _make_trajectory(bench, setting.schedule(name), w0, [collector])
    checkpoint, start = (ALONE, BRANCH) if name == "PFGE" else (SNAPSHOT, None)
    _walk(bench, seed, setting, trajectory, name, checkpoint, start=start)


def _walk(
    bench: Bench,
    seed: int,
    setting: Setting,
    trajectory: Trajectory,
    name: str,
    checkpoint: str,
    *,
    start: str | None = None,
    on_update: Callable[[], None] | None = None,
) -> None:
    folder = bench.folder.of_seed(seed)
    walk(
        trajectory,
        bench.batches(seed, "ensembling"),
        bench.engine,
        iterations=setting.iterations,
        seed=seed,
        checkpoint=folder / checkpoint,
        checkpoint_seconds=bench.experiment.engine.checkpoint_seconds,
        reporter=bench.reporter,
        name=f"seed {seed}: {name}",
        log=bench.open_log(f"seed {seed}: {name}"),
        start=folder / start if start else None,
        on_update=on_update,
    )


def _make_trajectory(
    bench: Bench, schedule: Schedule, w0: Weights, collectors: Sequence[Collector]
) -> Trajectory:
    settings = bench.experiment.ensemble
    model = bench.build_model()
    load_weights(model, w0)
    optimizer = make_sgd(
        model, rate=settings.high, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    return Trajectory(model, optimizer, schedule, collectors)


def _make_collector(bench: Bench, seed: int, setting: Setting, name: str) -> Collector:
    folder = bench.folder.of_seed(seed) / MEMBERS / name
    store = folder if bench.engine.is_first else FollowerStore(folder)
    return make_collector(name, setting, seed=seed, store=store)


def _forget_members(folder: Path) -> None:
    """Remove members that no checkpoint knows: a run that was killed before its first one begins anew."""
    if not (folder / SHARED).exists() and not (folder / ALONE).exists():
        shutil.rmtree(folder / MEMBERS, ignore_errors=True)
    if not (folder / SNAPSHOT).exists():
        shutil.rmtree(folder / MEMBERS / "Snapshot", ignore_errors=True)


def _tidy(folder: Path) -> None:
    """Remove what only an unfinished run needs, and what a killed one left half-written."""
    shutil.rmtree(folder / MEMBERS, ignore_errors=True)
    # A deep ensemble has the later w0s as its members.
    for file in (
        f
        for pattern in ("*.checkpoint", ".*.part", "scores/.*.part", "w0-*.safetensors")
        for f in folder.glob(pattern)
    ):
        file.unlink()
