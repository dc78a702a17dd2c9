"""The paths of a comparison: what each trains, and the ensembles that it leaves in the run folder."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pfge.collectors import Collector
from pfge.lab.evaluation.record import save_collected
from pfge.lab.experiments.connect import curve_checkpoint
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.member_store import MemberStore
from pfge.lab.session import Session
from pfge.lab.training.fork import Fork
from pfge.lab.training.optimizers import make_optimizer
from pfge.lab.training.pretrain import find_w0
from pfge.lab.training.resumable import Training, train_resumable
from pfge.methods import Method, Setting, make_collector
from pfge.schedules import Schedule
from pfge.storage.checkpoint import save_checkpoint
from pfge.storage.ensemble_folder import EnsembleFolder
from pfge.storage.manifest import MANIFEST
from pfge.trajectory import Trajectory
from pfge.weights import Weights, load_weights

SHARED = "shared.checkpoint"
MEMBERS = "members"
PERIODS = "periods"
STREAM = "ensembling"
"""Of training batches, which all paths of a seed share."""


def train_shared(
    session: Session, seed: int, setting: Setting, rows: Mapping[str, str], forking: Sequence[str]
) -> None:
    """Train along the shared path, record where others leave it, and save what its methods collected.

    Args:
        session: The experiment.
        seed: Which of its seeds.
        setting: What the methods share.
        rows: The row of each method that observes the path.
        forking: The methods that leave the path at their first restart.
    """
    folder = session.folder.of_seed(seed)
    listeners = {name: _make_collector(session, seed, setting, name, SHARED) for name in rows}
    forks = {name: _make_fork(session, seed, setting, name) for name in forking}
    collectors = [*(collector for collector, _ in listeners.values()), *forks.values()]
    trajectory = _make_trajectory(session, setting.schedule(), find_w0(session, seed), collectors)

    def note_forks() -> None:
        for name, fork in forks.items():
            if (state := fork.state(trajectory)) and session.engine.is_first:
                save_checkpoint(folder / fork_file(name), state)

    name = f"seed {seed}: {', '.join(listeners)}"
    training = Training(name, seed, setting.iterations, folder / SHARED)
    train_resumable(session, trajectory, session.batches(seed, STREAM), training, note_forks)
    for name, row in rows.items():
        save_collected(session, seed, setting, row, *listeners[name])


def train_own(session: Session, seed: int, setting: Setting, method: Method) -> None:
    """Train along a method's own path, after it leaves the shared one, and save its members."""
    folder = session.folder.of_seed(seed)
    checkpoint, start = f"{method.name.lower()}.checkpoint", fork_file(method.name)
    collector, store = _make_collector(session, seed, setting, method.name, checkpoint, start)
    trajectory = _make_trajectory(session, method.schedule(setting), find_w0(session, seed), [collector])
    name = f"seed {seed}: {method.name}"
    training = Training(name, seed, setting.iterations, folder / checkpoint, folder / start)
    train_resumable(session, trajectory, session.batches(seed, STREAM), training)
    save_collected(session, seed, setting, method.name, collector, store)


def train_period(session: Session, seed: int, setting: Setting, method: Method, number: int) -> None:
    """Train one of the independent periods of a method, counted from 1, and save its member."""
    name = _period_name(method.name, number)
    checkpoint = f"{name.lower()}.checkpoint"
    _forget_unknown(session, seed, name, checkpoint)
    folder = session.folder.of_seed(seed)
    store = _make_store(
        session, seed, folder / MEMBERS / name, period_folder(session.folder, seed, method.name, number)
    )
    collector = make_collector(method.name, setting, seed=seed, store=store)
    trajectory = _make_trajectory(session, method.schedule(setting), find_w0(session, seed), [collector])
    trajectory.iteration = (number - 1) * setting.period  # batches and rates are those of its place
    work = f"seed {seed}: {method.name}, period {number}"
    training = Training(work, seed, number * setting.period, folder / checkpoint)
    train_resumable(session, trajectory, session.batches(seed, STREAM), training)
    session.engine.first_does(lambda: store.save(model=None, task=None, usage=session.usage))


def join_periods(session: Session, seed: int, setting: Setting, method: Method) -> None:
    """Save the members of a method's independent periods as one ensemble."""
    collector, store = _make_collector(session, seed, setting, method.name, finish=lambda weights: weights)
    collector.begin(find_w0(session, seed))
    for number in range(1, setting.members + 1):
        period = EnsembleFolder.open(period_folder(session.folder, seed, method.name, number))
        (iteration,), (member,) = period.iterations, period.members()
        if iteration is None:
            raise RuntimeError(f"{period.path} must say at which iteration its member was taken")
        store.append(iteration, member)
    save_collected(session, seed, setting, method.name, collector, store)


def fork_file(name: str) -> str:
    """Return the name of the checkpoint with which a method leaves the shared path."""
    return f"{name.lower()}-fork.checkpoint"


def period_folder(folder: RunFolder, seed: int, name: str, number: int) -> Path:
    """Return the folder of the member that one independent period of a method gave."""
    return folder.seed_path(seed) / PERIODS / _period_name(name, number)


def has_period(folder: RunFolder, seed: int, name: str, number: int) -> bool:
    """Return whether the member of one independent period is saved."""
    return (period_folder(folder, seed, name, number) / MANIFEST).exists()


def unfinished_work(folder: Path) -> list[Path]:
    """Return the files and folders of a seed that only an unfinished comparison needs."""
    # The w0s after the first are members of a deep ensemble, which is saved by now.
    files = [*folder.glob("*.checkpoint"), *folder.glob("w0-*.safetensors*")]
    curves = set(folder.glob(curve_checkpoint("*", "*")))  # of another command, which continues from them
    found = (folder / MEMBERS, folder / PERIODS, *files)
    return [path for path in found if path.exists() and path not in curves]


def _period_name(name: str, number: int) -> str:
    return f"{name}-{number}"


def _make_trajectory(
    session: Session, schedule: Schedule, w0: Weights, collectors: Sequence[Collector]
) -> Trajectory:
    settings = session.experiment.ensemble
    model = session.build_model()
    load_weights(model, w0)
    optimizer = make_optimizer(model, settings, rate=settings.high)
    return Trajectory(model, optimizer, schedule, collectors)


def _make_fork(session: Session, seed: int, setting: Setting, name: str) -> Fork:
    """Return what observes for a method that leaves the path, unless it left before."""
    is_recorded = (session.folder.of_seed(seed) / fork_file(name)).exists()
    session.engine.wait_for_all()  # no process records before all have checked
    if is_recorded:
        return Fork(make_collector(name, setting, seed=seed), is_recorded=True)
    return Fork(_make_collector(session, seed, setting, name, SHARED)[0])


def _make_collector(
    session: Session,
    seed: int,
    setting: Setting,
    name: str,
    *checkpoints: str,
    finish: Callable[[Weights], Weights] | None = None,
) -> tuple[Collector, MemberStore]:
    """Return a new collector and its store."""
    _forget_unknown(session, seed, name, *checkpoints)
    path = session.folder.of_seed(seed) / MEMBERS / name
    store = _make_store(session, seed, path, session.folder.ensemble(seed, name), finish)
    return make_collector(name, setting, seed=seed, store=store), store


def _forget_unknown(session: Session, seed: int, name: str, *checkpoints: str) -> None:
    """Remove members that no checkpoint knows: a killed run left them."""
    folder = session.folder.of_seed(seed)

    def forget() -> None:
        if not any((folder / checkpoint).exists() for checkpoint in checkpoints):
            shutil.rmtree(folder / MEMBERS / name, ignore_errors=True)

    session.engine.first_does(forget)


def _make_store(
    session: Session,
    seed: int,
    path: Path,
    saved: Path,
    finish: Callable[[Weights], Weights] | None = None,
) -> MemberStore:
    """Return the store of members that are finished by fresh BatchNorm statistics, or otherwise."""
    fresh = finish or (lambda weights: session.with_fresh_batch_norm(weights, seed))
    return MemberStore(path, saved, fresh, writes=session.engine.is_first)
