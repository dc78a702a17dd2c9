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
from pfge.lab.session import Session, make_sgd, open_session
from pfge.lab.training.follower_store import FollowerStore
from pfge.lab.training.fork import Fork
from pfge.lab.training.pretrain import find_w0
from pfge.lab.training.resumable import train_resumable
from pfge.methods import LISTENERS, Setting, make_collector
from pfge.schedules import Schedule
from pfge.storage.checkpoint import save_checkpoint
from pfge.trajectory import Trajectory
from pfge.weights import Weights, load_weights

SHARED = "shared.checkpoint"
ALONE = "pfge.checkpoint"
FORK = "fork.checkpoint"
SNAPSHOT = "snapshot.checkpoint"
MEMBERS = "members"


def compare(experiment: Experiment, path: Path, reporter: Reporter) -> list[dict[str, Any]]:
    """Run or continue a comparison in a folder, and return all its results."""
    with open_session(experiment, path, reporter) as session:
        for seed in experiment.seeds:
            _compare_one(session, seed)
    return read_results(session.folder.results)


def _compare_one(session: Session, seed: int) -> None:
    measured = measured_rows(session, seed)
    if not measured >= expected_rows(session.experiment.ensemble.methods):
        _run_methods(session, seed, measured)
    session.engine.first_does(lambda: _tidy(session.folder.of_seed(seed)))


def _run_methods(session: Session, seed: int, measured: set[str]) -> None:
    methods = session.experiment.ensemble.methods
    w0 = find_w0(session, seed)
    if "w0" not in measured:
        record_ensemble(session, seed, "w0", session.make_ensemble([w0], method="w0", iterations=[0]))
    setting = session.experiment.ensemble.setting(session.batches(seed, "ensembling").per_epoch)
    session.engine.first_does(lambda: _forget_members(session.folder.of_seed(seed)))
    listeners = {
        name: _make_collector(session, seed, setting, name)
        for name in dict.fromkeys(method.rstrip("*") for method in methods)
        if name in LISTENERS
    }
    rows = {name: name if name in methods else f"{name}*" for name in listeners}
    # An ensemble that is there only has to be measured: who removes the results can have them anew.
    if any(not is_saved(session, seed, row) for row in rows.values()):
        _train_shared(session, seed, setting, w0, [*listeners.values()], forks="PFGE" in methods)
    for name, row in rows.items():
        if row not in measured:
            record_collected(session, seed, setting, row, listeners[name])
    waiting = [name for name in methods if name not in measured]
    for name in ("PFGE", "Snapshot"):
        if name in waiting:
            collector = _make_collector(session, seed, setting, name)
            if not is_saved(session, seed, name):
                _train_own(session, seed, setting, w0, name, collector)
            record_collected(session, seed, setting, name, collector)
    if "DeepEnsemble" in waiting:
        make_deep_ensemble(session, seed, w0, setting.members)
    if "MCDropout" in waiting:
        make_mc_dropout(session, seed, w0, setting.members)


def _train_shared(
    session: Session, seed: int, setting: Setting, w0: Weights, listeners: list[Collector], *, forks: bool
) -> None:
    """Follow the one path that all listeners watch, and note where PFGE's leaves it."""
    folder = session.folder.of_seed(seed)
    fork = Fork(_make_collector(session, seed, setting, "PFGE")) if forks else None
    collectors = [*listeners, fork] if fork else listeners
    trajectory = _make_trajectory(session, setting.schedule(), w0, collectors)

    def note_fork() -> None:
        if fork and (state := fork.state(trajectory)) and session.engine.is_first:
            save_checkpoint(folder / FORK, state)

    names = ", ".join(str(listener).partition("(")[0] for listener in listeners)
    _train(session, seed, setting, trajectory, names, SHARED, on_update=note_fork)


def _train_own(
    session: Session, seed: int, setting: Setting, w0: Weights, name: str, collector: Collector
) -> None:
    """Follow a method's own path: PFGE's from where it leaves the shared one, if anybody shares."""
    trajectory = _make_trajectory(session, setting.schedule(name), w0, [collector])
    checkpoint, start = (ALONE, FORK) if name == "PFGE" else (SNAPSHOT, None)
    _train(session, seed, setting, trajectory, name, checkpoint, start=start)


def _train(
    session: Session,
    seed: int,
    setting: Setting,
    trajectory: Trajectory,
    name: str,
    checkpoint: str,
    *,
    start: str | None = None,
    on_update: Callable[[], None] | None = None,
) -> None:
    folder = session.folder.of_seed(seed)
    train_resumable(
        trajectory,
        session.batches(seed, "ensembling"),
        session.engine,
        iterations=setting.iterations,
        seed=seed,
        checkpoint=folder / checkpoint,
        checkpoint_seconds=session.experiment.engine.checkpoint_seconds,
        reporter=session.reporter,
        name=f"seed {seed}: {name}",
        log=session.open_log(f"seed {seed}: {name}"),
        start=folder / start if start else None,
        on_update=on_update,
    )


def _make_trajectory(
    session: Session, schedule: Schedule, w0: Weights, collectors: Sequence[Collector]
) -> Trajectory:
    settings = session.experiment.ensemble
    model = session.build_model()
    load_weights(model, w0)
    optimizer = make_sgd(
        model, rate=settings.high, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    return Trajectory(model, optimizer, schedule, collectors)


def _make_collector(session: Session, seed: int, setting: Setting, name: str) -> Collector:
    folder = session.folder.of_seed(seed) / MEMBERS / name
    store = folder if session.engine.is_first else FollowerStore(folder)
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
