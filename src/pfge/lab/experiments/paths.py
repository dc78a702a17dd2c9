"""The training paths of a comparison, and their checkpoints."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pfge.collectors import Collector, FolderStore
from pfge.ensemble import Ensemble
from pfge.lab.data import take
from pfge.lab.evaluation.evaluate import evaluate_on
from pfge.lab.evaluation.record import save_collected
from pfge.lab.experiments.connect import curve_checkpoint
from pfge.lab.run.folder import RunFolder
from pfge.lab.session import Session
from pfge.lab.training.checkpoint_files import (
    average_checkpoints,
    fit_to_model,
    read_as_member,
    read_checkpoint,
    require_like_first,
)
from pfge.lab.training.pretrain import find_w0, make_optimizer
from pfge.lab.training.resumable import Fork, Training, train_resumable
from pfge.methods import Method, TrainingPlan, make_collector
from pfge.rounding import is_lower, lowest_first
from pfge.schedules import Schedule
from pfge.storage.checkpoint import save_checkpoint
from pfge.storage.ensemble_folder import MANIFEST, EnsembleFolder, LazyMembers
from pfge.storage.record import EnsembleRecord
from pfge.trajectory import Trajectory
from pfge.weights import Weights, interpolate, load_weights

IMAGES = 2000
"""Training examples that losses between two checkpoints are measured on."""
HIGH_BARRIER = 0.5
"""From this rise of the training loss half-way, relative to the ends, two checkpoints lie apart."""
SEED = 0  # of the batches that BatchNorm is refreshed with


@dataclass(frozen=True)
class Barrier:
    """The training loss between two checkpoints.

    Attributes:
        first: One of them.
        second: The other.
        ends: The mean of their losses.
        middle: The loss half-way, with BatchNorm statistics of that point.
    """

    first: Path
    second: Path
    ends: float
    middle: float

    @property
    def is_high(self) -> bool:
        """Whether the two do not lie in one valley, so that their mean is worse than they are."""
        # A loss such as the NLL of a regression may be negative.
        return self.middle > self.ends + HIGH_BARRIER * abs(self.ends) + 0.05


@dataclass(frozen=True)
class Average:
    """An averaged model.

    Attributes:
        ensemble: The model, an ensemble of one.
        used: The checkpoints in it, in the order in which they were taken.
        metrics: On validation data.
        each: Those of each checkpoint that was given.
        barriers: Between adjacent checkpoints.
    """

    ensemble: Ensemble
    used: Sequence[Path]
    metrics: Mapping[str, float]
    each: Sequence[Mapping[str, float]]
    barriers: Sequence[Barrier]


def average_with_data(session: Session, paths: Sequence[Path], *, greedy: bool = False) -> Average:
    """Average checkpoints, refresh BatchNorm, and measure what that does.

    Args:
        session: The data and the model.
        paths: The checkpoints.
        greedy: Take them in the order of their validation NLL, and keep only those that lower it (a greedy
            soup: Wortsman et al., "Model soups", ICML 2022).
    """
    ensemble = pooled_checkpoints(session, paths)
    data = session.validation_for("measuring checkpoints")
    each = evaluate_on(session, ensemble, data, "each checkpoint").members
    barriers = find_barriers(session, ensemble, paths)
    if greedy:
        return _average_greedily(session, paths, each, barriers)
    mean = _refreshed(session, paths)
    return Average(mean, paths, _measure(session, mean), each, barriers)


def pooled_checkpoints(session: Session, paths: Sequence[Path]) -> Ensemble:
    """Return the checkpoints as an ensemble; each has the BatchNorm statistics of its own training."""
    members = checkpoint_members(paths, _reader(session))
    return session.make_ensemble(members, method=f"{len(paths)} checkpoints")


def checkpoint_members(
    paths: Sequence[Path], read: Callable[[Path], Weights] = read_as_member
) -> LazyMembers:
    """Return the weights of checkpoints, each read when it is asked for, in the types of the first.

    Args:
        paths: The checkpoints.
        read: Returns the weights of each.

    Raises:
        StorageError: One differs from the first in a name or shape, or has values that the types of the first
            cannot hold, when it is read.
    """
    first = {name: tensor.to("meta") for name, tensor in read(paths[0]).items()}

    def read_one(index: int) -> Weights:
        weights = read(paths[index])
        require_like_first(first, weights, paths[0], paths[index])
        return {name: tensor.to(first[name].dtype) for name, tensor in weights.items()}

    return LazyMembers(len(paths), read_one)


def _reader(session: Session) -> Callable[[Path], Weights]:
    """Return what reads a checkpoint under the names of the experiment's model."""
    model = session.build_model()
    return lambda path: fit_to_model(read_checkpoint(path), model, path)


def find_barriers(session: Session, ensemble: Ensemble, paths: Sequence[Path]) -> list[Barrier]:
    """Return the training loss between adjacent checkpoints."""
    train = session.splits.train
    train = take(train, min(IMAGES, len(train)), SEED, part="training data")
    ends = [m["nll"] for m in evaluate_on(session, ensemble, train, "training loss").members]
    middles = LazyMembers(
        len(paths) - 1, lambda i: interpolate(ensemble.members[i], ensemble.members[i + 1], 0.5)
    )
    if not len(middles):
        return []
    fresh = session.refresh_batch_norm(session.make_ensemble(middles), SEED, "BatchNorm half-way")
    losses = [m["nll"] for m in evaluate_on(session, fresh, train, "half-way").members]
    return [
        Barrier(paths[i], paths[i + 1], (ends[i] + ends[i + 1]) / 2, loss) for i, loss in enumerate(losses)
    ]


def _average_greedily(
    session: Session, paths: Sequence[Path], each: Sequence[Mapping[str, float]], barriers: Sequence[Barrier]
) -> Average:
    order = lowest_first(range(len(paths)), key=lambda index: each[index]["nll"])
    used = [paths[order[0]]]
    # The best one as it is, with the BatchNorm statistics of its own training.
    best, metrics = _as_average(session, _reader(session)(used[0]), 1), each[order[0]]
    for index in order[1:]:
        candidate = _refreshed(session, [*used, paths[index]])
        found = _measure(session, candidate)
        if is_lower(found["nll"], metrics["nll"]):
            used, best, metrics = [*used, paths[index]], candidate, found
    return Average(best, used, metrics, each, barriers)


def name_of_average(count: int) -> str:
    """Return the method of an ensemble whose only member is the mean of checkpoints, for people."""
    return f"average of {count} checkpoint{'s' * (count > 1)}"


def _as_average(session: Session, weights: Weights, count: int) -> Ensemble:
    return session.make_ensemble([weights], method=name_of_average(count))


def _refreshed(session: Session, paths: Sequence[Path]) -> Ensemble:
    mean = _as_average(session, average_checkpoints(paths, read=_reader(session)), len(paths))
    return session.refresh_batch_norm(mean, SEED, f"BatchNorm of the mean of {len(paths)}")


def _measure(session: Session, ensemble: Ensemble) -> dict[str, float]:
    return evaluate_on(session, ensemble, session.splits.validation, "mean on validation").members[0]


SHARED = "shared.checkpoint"
MEMBERS = "members"
PERIODS = "periods"
STREAM = "ensembling"
"""Of training batches, which all paths of a seed share."""


def train_shared(
    session: Session, seed: int, setting: TrainingPlan, rows: Mapping[str, str], forking: Sequence[str]
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


def train_own(session: Session, seed: int, setting: TrainingPlan, method: Method) -> None:
    """Train along a method's own path, after it leaves the shared one, and save its members."""
    folder = session.folder.of_seed(seed)
    checkpoint, start = f"{method.name.lower()}.checkpoint", fork_file(method.name)
    collector, store = _make_collector(session, seed, setting, method.name, checkpoint, start)
    trajectory = _make_trajectory(session, method.schedule(setting), find_w0(session, seed), [collector])
    name = f"seed {seed}: {method.name}"
    training = Training(name, seed, setting.iterations, folder / checkpoint, folder / start)
    train_resumable(session, trajectory, session.batches(seed, STREAM), training)
    save_collected(session, seed, setting, method.name, collector, store)


def train_period(session: Session, seed: int, setting: TrainingPlan, method: Method, number: int) -> None:
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
    session.engine.on_rank_zero(lambda: store.save(EnsembleRecord(input_spec=session.input_spec)))


def join_periods(session: Session, seed: int, setting: TrainingPlan, method: Method) -> None:
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


def _make_fork(session: Session, seed: int, setting: TrainingPlan, name: str) -> Fork:
    """Return what observes for a method that leaves the path, unless it left before."""
    is_recorded = (session.folder.of_seed(seed) / fork_file(name)).exists()
    session.engine.wait_for_all()  # no process records before all have checked
    if is_recorded:
        return Fork(make_collector(name, setting, seed=seed), is_recorded=True)
    return Fork(_make_collector(session, seed, setting, name, SHARED)[0])


def _make_collector(
    session: Session,
    seed: int,
    setting: TrainingPlan,
    name: str,
    *checkpoints: str,
    finish: Callable[[Weights], Weights] | None = None,
) -> tuple[Collector, FolderStore]:
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

    session.engine.on_rank_zero(forget)


def _make_store(
    session: Session,
    seed: int,
    path: Path,
    saved: Path,
    finish: Callable[[Weights], Weights] | None = None,
) -> FolderStore:
    """Return the store of members that are finished by fresh BatchNorm statistics, or otherwise."""
    fresh = finish or (lambda weights: session.with_fresh_batch_norm(weights, seed))
    return FolderStore(path, writes=session.engine.is_first, finish=fresh, final=saved)
