"""Run every method from one w0, with the same rates and iterations, and measure it."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pfge.collectors import Collector
from pfge.lab.config.schema import Experiment
from pfge.lab.evaluation.record import (
    is_saved,
    measured_rows,
    record_collected,
    record_ensemble,
)
from pfge.lab.experiments.baselines import MAKERS
from pfge.lab.run.member_store import MemberStore
from pfge.lab.run.progress import Reporter
from pfge.lab.run.result_lines import require_rows
from pfge.lab.run.results import ComparisonRow, expected_rows
from pfge.lab.session import Session, open_session
from pfge.lab.training.fork import Fork
from pfge.lab.training.optimizers import make_optimizer
from pfge.lab.training.pretrain import find_w0
from pfge.lab.training.resumable import train_resumable
from pfge.methods import METHODS, START, Method, Setting, base_of, make_collector, starred
from pfge.schedules import Schedule
from pfge.storage.checkpoint import save_checkpoint
from pfge.trajectory import Trajectory
from pfge.weights import Weights, load_weights

SHARED = "shared.checkpoint"
MEMBERS = "members"


def compare(experiment: Experiment, path: Path, reporter: Reporter) -> list[ComparisonRow]:
    """Run or continue a comparison in a folder, and return all its results."""
    with open_session(experiment, path, reporter) as session:
        for seed in experiment.seeds:
            _compare_one(session, seed)
    return require_rows(session.folder.results, ComparisonRow)


def _compare_one(session: Session, seed: int) -> None:
    measured = measured_rows(session, seed)
    if not measured >= expected_rows(session.experiment.ensemble.methods):
        _run_methods(session, seed, measured)
    session.engine.first_does(lambda: _tidy(session.folder.of_seed(seed)))


def _run_methods(session: Session, seed: int, measured: set[str]) -> None:
    methods = session.experiment.ensemble.methods
    w0 = find_w0(session, seed)
    if START not in measured:
        record_ensemble(session, seed, START, session.make_ensemble([w0], method=START, iterations=[0]))
    setting = session.experiment.ensemble.setting(session.batches(seed, "ensembling").per_epoch)
    own = _chosen(session, "own")
    listeners = {
        name: _make_collector(session, seed, setting, name, SHARED)
        for name in dict.fromkeys(map(base_of, methods))
        if METHODS[name].path == "shared"
    }
    rows = {name: name if name in methods else starred(name) for name in listeners}
    # A saved ensemble only has to be measured, so a row can be removed and made again without training.
    if any(not is_saved(session, seed, row) for row in rows.values()):
        forking = [method.name for method in own if method.forks(setting)]
        collectors = {name: collector for name, (collector, _) in listeners.items()}
        _train_shared(session, seed, setting, w0, collectors, forking)
    for name, row in rows.items():
        if row not in measured:
            record_collected(session, seed, setting, row, *listeners[name])
    for method in own:
        if method.name not in measured:
            _run_own(session, seed, setting, w0, method)
    for path, make in MAKERS.items():
        for method in _chosen(session, path):
            if method.name not in measured:
                make(session, seed, w0, method.name, setting.members)


def _chosen(session: Session, path: str) -> list[Method]:
    """Return the experiment's methods of a path, in the order of the table."""
    names = session.experiment.ensemble.methods
    return [method for method in METHODS.values() if method.path == path and method.name in names]


def _train_shared(
    session: Session,
    seed: int,
    setting: Setting,
    w0: Weights,
    listeners: Mapping[str, Collector],
    forking: Sequence[str],
) -> None:
    """Train along the shared path that most collectors observe, and record where others leave it."""
    folder = session.folder.of_seed(seed)
    forks = {name: Fork(_make_collector(session, seed, setting, name, SHARED)[0]) for name in forking}
    collectors = [*listeners.values(), *forks.values()]
    trajectory = _make_trajectory(session, setting.schedule(), w0, collectors)

    def note_forks() -> None:
        for name, fork in forks.items():
            if (state := fork.state(trajectory)) and session.engine.is_first:
                save_checkpoint(folder / _fork_file(name), state)

    _train(session, seed, setting, trajectory, ", ".join(listeners), SHARED, on_update=note_forks)


def _run_own(session: Session, seed: int, setting: Setting, w0: Weights, method: Method) -> None:
    """Train along a method's own path, after it leaves the shared one, and measure its members."""
    checkpoint, start = f"{method.name.lower()}.checkpoint", _fork_file(method.name)
    collector, store = _make_collector(session, seed, setting, method.name, checkpoint, start)
    if not is_saved(session, seed, method.name):
        trajectory = _make_trajectory(session, method.schedule(setting), w0, [collector])
        _train(session, seed, setting, trajectory, method.name, checkpoint, start=start)
    record_collected(session, seed, setting, method.name, collector, store)


def _fork_file(name: str) -> str:
    return f"{name.lower()}-fork.checkpoint"


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
        session.task,
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
    optimizer = make_optimizer(model, settings, rate=settings.high)
    return Trajectory(model, optimizer, schedule, collectors)


def _make_collector(
    session: Session, seed: int, setting: Setting, name: str, *checkpoints: str
) -> tuple[Collector, MemberStore]:
    """Return a new collector and its store; members that no checkpoint knows were left by a killed run."""
    of_seed = session.folder.of_seed(seed)
    folder = of_seed / MEMBERS / name

    def forget() -> None:
        if not any((of_seed / checkpoint).exists() for checkpoint in checkpoints):
            shutil.rmtree(folder, ignore_errors=True)

    session.engine.first_does(forget)
    store = MemberStore(
        folder,
        session.folder.ensemble(seed, name),
        lambda weights: session.with_fresh_batch_norm(weights, seed),
        writes=session.engine.is_first,
    )
    return make_collector(name, setting, seed=seed, store=store), store


def _tidy(folder: Path) -> None:
    """Remove what only an unfinished run needs."""
    shutil.rmtree(folder / MEMBERS, ignore_errors=True)
    # The w0s after the first are members of a deep ensemble, which is saved by now.
    for file in (*folder.glob("*.checkpoint"), *folder.glob("w0-*.safetensors*")):
        file.unlink()
