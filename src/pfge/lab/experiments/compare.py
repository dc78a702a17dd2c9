"""Compare methods: the units of a comparison, the training paths behind them, and their results."""

import shutil
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pfge.collectors import Collector, FolderStore
from pfge.ensemble import Ensemble
from pfge.lab.config.settings import Experiment
from pfge.lab.config.toml import load_experiment
from pfge.lab.data.batches import count_batches
from pfge.lab.engine import has_other_processes
from pfge.lab.evaluation.passes import augmented_passes, mc_dropout, views_in
from pfge.lab.evaluation.record import record_collected, record_ensemble, save_collected, saved_ensemble
from pfge.lab.launch.driver import UnitsMissingError, launch
from pfge.lab.launch.units import Unit
from pfge.lab.run.folder import RunFolder, curve_checkpoint
from pfge.lab.run.progress import Reporter
from pfge.lab.run.results import ComparisonRow, expected_rows, put_in_order, require_rows
from pfge.lab.session import Session, kept_count, open_session
from pfge.lab.training.pretrain import (
    find_w0,
    make_optimizer,
    pretraining_iterations,
    require_optimizers,
    try_optimizers,
)
from pfge.lab.training.resumable import Fork, Training, train_resumable
from pfge.methods import METHODS, START, Method, TrainingPlan, base_of, make_collector, starred
from pfge.schedules import Schedule
from pfge.storage.checkpoint import save_checkpoint
from pfge.storage.ensemble_folder import MANIFEST, EnsembleFolder
from pfge.storage.record import EnsembleRecord
from pfge.trajectory import Trajectory
from pfge.weights import Weights, load_weights

OTHER_PATHS = ("own", "trainings", "start", "augmented")
"""Paths of the methods whose rows follow those of the shared path, in this order."""


def comparison_units(experiment: Experiment, folder: RunFolder, per_epoch: int) -> list[Unit]:
    """Return the units of a comparison, each after those that it needs.

    Args:
        experiment: The comparison.
        folder: The run folder.
        per_epoch: Number of iterations of an epoch.
    """
    return [
        unit for seed in experiment.seeds for unit in _UnitsOfSeed(experiment, folder, per_epoch, seed).make()
    ]


def start_units(experiment: Experiment, folder: RunFolder, per_epoch: int) -> list[Unit]:
    """Return the units that make w0; the arguments are those of `comparison_units`."""
    return [_UnitsOfSeed(experiment, folder, per_epoch, seed).make()[0] for seed in experiment.seeds]


def units_of_run(folder: RunFolder) -> list[Unit]:
    """Return the units of the comparison in a folder, to show their state; the data is not read.

    Raises:
        StorageError: The folder has no run, or the run has not begun.
    """
    folder.require_run()
    experiment = load_experiment(folder.config)
    per_epoch = count_batches(kept_count(folder, "train"), experiment.data.batch_size)
    return comparison_units(experiment, folder, per_epoch)


def row_order(experiment: Experiment) -> list[tuple[int, str]]:
    """Return the seed and the name of each row in the order of the results of one process."""
    others = [method.name for path in OTHER_PATHS for method in _chosen(experiment, path)]
    rows = [START, *_shared_rows(experiment).values(), *others]
    return [(seed, name) for seed in experiment.seeds for row in rows for name in (starred(row), row)]


class _UnitsOfSeed:
    """Make the units of one seed, in the order of its results."""

    def __init__(self, experiment: Experiment, folder: RunFolder, per_epoch: int, seed: int):
        self._experiment = experiment
        self._folder = folder
        self._seed = seed
        self._setting = experiment.ensemble.setting(per_epoch)
        self._training = experiment.pretrain.iterations(per_epoch)
        self._units: list[Unit] = []
        self._path_of: dict[str, str] = {}
        self._measuring: list[str] = []

    def make(self) -> list[Unit]:
        """Return the units."""
        self._w0 = self._add_start(1)
        self._add_measuring(START, partial(_record_w0, seed=self._seed), self._w0)
        shared = self._add_shared()
        for method in _chosen(self._experiment, "own"):
            self._add_own(method, shared)
        for method in _chosen(self._experiment, "trainings"):
            self._add_deep_ensemble(method.name)
        for method in _chosen(self._experiment, "start"):
            run = partial(record_mc_dropout, seed=self._seed, name=method.name, samples=self._setting.members)
            self._add_measuring(method.name, run, self._w0)
        for method in _chosen(self._experiment, "augmented"):
            run = partial(record_augmented, seed=self._seed, name=method.name, setting=self._setting)
            self._add_measuring(method.name, run, self._path_of[method.base])
        self._add_tidying()
        return self._units

    def _add_start(self, number: int) -> str:
        name = "w0" if number == 1 else f"start {number}"
        iterations = 0 if self._experiment.pretrain.weights else self._training
        return self._add(
            name,
            self._folder.w0(self._seed, number).exists,
            partial(_find_start, seed=self._seed, number=number),
            iterations=iterations,
        )

    def _add_shared(self) -> str | None:
        rows = _shared_rows(self._experiment)
        if not rows:
            return None
        forking = [method.name for method in _chosen(self._experiment, "own") if method.forks(self._setting)]
        shared = self._add(
            "shared path",
            partial(_has_ensembles, self._folder, self._seed, tuple(rows.values())),
            partial(train_shared, seed=self._seed, setting=self._setting, rows=rows, forking=forking),
            self._w0,
            iterations=self._setting.iterations,
        )
        for row in rows.values():
            self._add_measuring_of_path(row, shared)
        return shared

    def _add_own(self, method: Method, shared: str | None) -> None:
        if method.periods_are_independent:
            numbers = range(1, self._setting.members + 1)
            needs = [self._add_period(method, number) for number in numbers]
            run, early, iterations = join_periods, None, 0
        else:
            run, iterations = train_own, self._setting.iterations
            needs, early = [self._w0], None
            if shared is not None and method.forks(self._setting):
                needs = [shared]
                early = self._folder.seed_path(self._seed) / fork_file(method.name)
                iterations -= self._setting.period
        path = self._add(
            method.name,
            partial(self._folder.has_ensemble, self._seed, method.name),
            partial(run, seed=self._seed, setting=self._setting, name=method.name),
            *needs,
            early=early,
            iterations=iterations,
        )
        self._add_measuring_of_path(method.name, path)

    def _add_period(self, method: Method, number: int) -> str:
        return self._add(
            f"{method.name}, period {number}",
            partial(has_period, self._folder, self._seed, method.name, number),
            partial(train_period, seed=self._seed, setting=self._setting, name=method.name, number=number),
            self._w0,
            iterations=self._setting.period,
        )

    def _add_deep_ensemble(self, name: str) -> None:
        count = self._setting.members
        saved = self._add(
            name,
            partial(self._folder.has_ensemble, self._seed, name),
            partial(save_deep_ensemble, seed=self._seed, name=name, count=count),
            self._w0,
            *map(self._add_start, range(2, count + 1)),
        )
        run = partial(record_deep_ensemble, seed=self._seed, name=name, count=count)
        self._add_measuring(name, run, saved)

    def _add_measuring_of_path(self, row: str, path: str) -> None:
        self._path_of[row] = path
        run = partial(record_collected, seed=self._seed, setting=self._setting, row=row)
        self._add_measuring(row, run, path)

    def _add_measuring(self, row: str, run: Callable[[Session], None], *needs: str) -> None:
        is_done = partial(_are_measured, self._folder, self._seed, {row})
        self._measuring.append(self._add(f"measure {row}", is_done, run, *needs))

    def _add_tidying(self) -> None:
        expected = expected_rows(self._experiment.ensemble.methods)
        self._add(
            "tidy",
            partial(_is_tidy, self._folder, self._seed, expected),
            partial(_tidy, seed=self._seed),
            *self._measuring,
            by_driver=True,
        )

    def _add(
        self,
        name: str,
        is_done: Callable[[], bool],
        run: Callable[[Session], None],
        *needs: str,
        early: Path | None = None,
        iterations: int = 0,
        by_driver: bool = False,
    ) -> str:
        unit = Unit(f"seed {self._seed}: {name}", is_done, run, needs, early, iterations, by_driver)
        if unit.name not in [other.name for other in self._units]:  # two methods may share a start
            self._units.append(unit)
        return unit.name


def _has_ensembles(folder: RunFolder, seed: int, rows: Sequence[str]) -> bool:
    return all(folder.has_ensemble(seed, row) for row in rows)


def _are_measured(folder: RunFolder, seed: int, expected: Set[str]) -> bool:
    """Return whether a seed has all of these rows in the file of results."""
    rows = require_rows(folder.results, ComparisonRow)
    return {row.method for row in rows if row.seed == seed} >= expected


def _is_tidy(folder: RunFolder, seed: int, expected: Set[str]) -> bool:
    return not unfinished_work(folder.seed_path(seed)) and _are_measured(folder, seed, expected)


def _chosen(experiment: Experiment, path: str) -> list[Method]:
    """Return the methods of an experiment that take a path, in the order of the table."""
    names = experiment.ensemble.methods
    return [method for method in METHODS.values() if method.path == path and method.name in names]


def _shared_rows(experiment: Experiment) -> dict[str, str]:
    """Return the row of each method on the shared path, which has all of its members or only the last."""
    methods = experiment.ensemble.methods
    return {
        name: name if name in methods else starred(name)
        for name in dict.fromkeys(map(base_of, methods))
        if METHODS[name].path == "shared"
    }


SHARED = "shared.checkpoint"
MEMBERS = "members"
PERIODS = "periods"
STREAM = "ensembling"
"""Name of the random stream of training batches, which all paths of a seed share."""


def train_shared(
    session: Session, seed: int, setting: TrainingPlan, rows: Mapping[str, str], forking: Sequence[str]
) -> None:
    """Train along the shared path, record where other methods leave it, and save the members of its methods.

    Args:
        session: The experiment.
        seed: Seed of the path.
        setting: The settings that all methods share.
        rows: Row of each method that observes the path.
        forking: Names of the methods that leave the path at their first restart.
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

    title = f"seed {seed}: {', '.join(listeners)}"
    training = Training(title, seed, setting.iterations, folder / SHARED)
    train_resumable(session, trajectory, session.batches(seed, STREAM), training, note_forks)
    for name, row in rows.items():
        save_collected(session, seed, setting, row, *listeners[name])


def train_own(session: Session, seed: int, setting: TrainingPlan, name: str) -> None:
    """Train along a method's own path, from where it leaves the shared one, and save its members."""
    folder = session.folder.of_seed(seed)
    checkpoint, start = f"{name.lower()}.checkpoint", fork_file(name)
    collector, store = _make_collector(session, seed, setting, name, checkpoint, start)
    schedule = METHODS[name].schedule(setting)
    trajectory = _make_trajectory(session, schedule, find_w0(session, seed), [collector])
    title = f"seed {seed}: {name}"
    training = Training(title, seed, setting.iterations, folder / checkpoint, folder / start)
    train_resumable(session, trajectory, session.batches(seed, STREAM), training)
    save_collected(session, seed, setting, name, collector, store)


def train_period(session: Session, seed: int, setting: TrainingPlan, name: str, number: int) -> None:
    """Train one of the independent periods of a method, counted from 1, and save its member."""
    period = _period_name(name, number)
    checkpoint = f"{period.lower()}.checkpoint"
    _forget_unknown(session, seed, period, checkpoint)
    folder = session.folder.of_seed(seed)
    store = _make_store(
        session, seed, folder / MEMBERS / period, period_folder(session.folder, seed, name, number)
    )
    collector = make_collector(name, setting, seed=seed, store=store)
    schedule = METHODS[name].schedule(setting)
    trajectory = _make_trajectory(session, schedule, find_w0(session, seed), [collector])
    trajectory.iteration = (number - 1) * setting.period  # selects the batches and rates of this period
    title = f"seed {seed}: {name}, period {number}"
    training = Training(title, seed, number * setting.period, folder / checkpoint)
    train_resumable(session, trajectory, session.batches(seed, STREAM), training)
    session.engine.on_rank_zero(lambda: store.save(EnsembleRecord(input_spec=session.input_spec)))


def join_periods(session: Session, seed: int, setting: TrainingPlan, name: str) -> None:
    """Save the members of a method's independent periods as one ensemble."""
    collector, store = _make_collector(session, seed, setting, name, finish=lambda weights: weights)
    collector.begin(find_w0(session, seed))
    for number in range(1, setting.members + 1):
        period = EnsembleFolder.open(period_folder(session.folder, seed, name, number))
        (iteration,), (member,) = period.iterations, period.members()
        if iteration is None:
            raise RuntimeError(f"{period.path} must state the iteration of its member")
        store.append(iteration, member)
    save_collected(session, seed, setting, name, collector, store)


def fork_file(name: str) -> str:
    """Return the name of the checkpoint with which a method leaves the shared path."""
    return f"{name.lower()}-fork.checkpoint"


def period_folder(folder: RunFolder, seed: int, name: str, number: int) -> Path:
    """Return the folder of the member of one independent period."""
    return folder.seed_path(seed) / PERIODS / _period_name(name, number)


def has_period(folder: RunFolder, seed: int, name: str, number: int) -> bool:
    """Return whether the member of an independent period is saved."""
    return (period_folder(folder, seed, name, number) / MANIFEST).exists()


def unfinished_work(folder: Path) -> list[Path]:
    """Return the files and folders of a seed that only an unfinished comparison needs."""
    # The second and later w0s are members of a deep ensemble, which is saved by now.
    files = [*folder.glob("*.checkpoint"), *folder.glob("w0-*.safetensors*")]
    curves = set(folder.glob(curve_checkpoint("*", "*")))  # of `pfge connect`
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
    """Return the fork of a method that leaves the path; it ignores the path if the fork is recorded."""
    is_recorded = (session.folder.of_seed(seed) / fork_file(name)).exists()
    session.engine.wait_for_all()  # no process writes a fork before all have checked
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
    """Remove the members of a run that was killed before its first checkpoint."""
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
    """Return a store that finishes each member, by default with fresh BatchNorm statistics."""
    fresh = finish or (lambda weights: session.with_fresh_batch_norm(weights, seed))
    return FolderStore(path, writes=session.engine.is_first, finish=fresh, final=saved)


def save_deep_ensemble(session: Session, seed: int, name: str, count: int) -> None:
    """Save the members of a deep ensemble, each trained from its own start; the first is w0."""
    members = [find_w0(session, seed, number) for number in range(1, count + 1)]
    # Each keeps the BatchNorm statistics of its own training.
    ensemble = session.make_ensemble(members, method=f"{name}({count})")
    session.engine.on_rank_zero(lambda: ensemble.save(session.folder.ensemble(seed, name)))


def record_deep_ensemble(session: Session, seed: int, name: str, count: int) -> None:
    """Measure a saved deep ensemble."""
    cost = (count - 1) * pretraining_iterations(session, seed)
    ensemble = saved_ensemble(session, seed, name)
    record_ensemble(session, seed, name, ensemble, iterations=cost, trainings=count)


def record_mc_dropout(session: Session, seed: int, name: str, samples: int) -> None:
    """Measure w0 with active dropout."""
    ensemble = mc_dropout(
        find_w0(session, seed),
        session.build_model,
        samples=samples,
        seed=seed,
        task=session.task,
        forward=session.engine.forward,
    )
    record_ensemble(session, seed, name, ensemble.to(session.engine.device))


def augmented_ensemble(session: Session, seed: int, method: Method, setting: TrainingPlan) -> Ensemble:
    """Return the one model of another method as it predicts images that are shifted and mirrored."""
    views = views_in(session, setting.members, method.name)
    ensemble = augmented_passes(
        saved_ensemble(session, seed, method.base).members[0],
        session.build_model,
        views,
        task=session.task,
        forward=session.engine.forward,
        method=f"{method.name}({len(views)})",
    )
    return ensemble.to(session.engine.device)


def record_augmented(session: Session, seed: int, name: str, setting: TrainingPlan) -> None:
    """Measure the one model of another method on images that are shifted and mirrored."""
    ensemble = augmented_ensemble(session, seed, METHODS[name], setting)
    record_ensemble(session, seed, name, ensemble, iterations=setting.iterations)


def _find_start(session: Session, seed: int, number: int) -> None:
    find_w0(session, seed, number)


def _record_w0(session: Session, seed: int) -> None:
    w0 = session.make_ensemble([find_w0(session, seed)], method=START, iterations=[0])
    record_ensemble(session, seed, START, w0)


def _tidy(session: Session, seed: int) -> None:
    """Remove the files and folders that only an unfinished run needs."""
    session.engine.on_rank_zero(lambda: _remove(unfinished_work(session.folder.seed_path(seed))))


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def compare(experiment: Experiment, path: Path, reporter: Reporter) -> list[ComparisonRow]:
    """Run or continue a comparison in a folder, and return all its results.

    Raises:
        UnitsMissingError: Some units failed three times; the results of all others are in the folder.
    """
    compare_all([(experiment, path)], reporter)
    return require_rows(RunFolder(path).results, ComparisonRow)


def compare_all(experiments: Sequence[tuple[Experiment, Path]], reporter: Reporter) -> None:
    """Run or continue comparisons, each in its folder, which share the workers. Their results are files.

    In one process, experiments run one after another, and one that fails does not keep the others from
    running. If each experiment has several processes, the first failure ends all: a process that does not see
    the failure would meet others in the next experiment while it is still in this one.

    Raises:
        UnitsMissingError: Some units failed three times; the results of all others are in the folders.
    """
    if len(experiments) > 1 and experiments[0][0].engine.chosen_launcher.is_this_process:
        _compare_one_by_one(experiments, reporter)
    else:
        _compare_together(experiments, reporter)


def _compare_together(experiments: Sequence[tuple[Experiment, Path]], reporter: Reporter) -> None:
    with ExitStack() as stack:
        sessions = _open_all(stack, experiments, reporter)
        for session in sessions:
            require_rows(session.folder.results, ComparisonRow, session.task)
        try:
            launch(sessions, comparison_units)
        except UnitsMissingError:
            _put_in_order(sessions)
            raise
        sessions[0].engine.on_rank_zero(lambda: _put_in_order(sessions))


def find_all_w0(experiments: Sequence[tuple[Experiment, Path]], reporter: Reporter) -> None:
    """Train or load w0 for every seed of experiments, each in its folder, where `engine.launcher` says.

    Raises:
        UnitsMissingError: Some w0 failed three times.
    """
    with ExitStack() as stack:
        sessions = _open_all(stack, experiments, reporter)
        launch(sessions, start_units)


def _open_all(
    stack: ExitStack, experiments: Sequence[tuple[Experiment, Path]], reporter: Reporter
) -> list[Session]:
    """Open a session in each folder and report the size of its data.

    In a new run, an optimizer that cannot be made is an error.
    """
    for experiment, path in experiments:
        # Checked before the data is read, which may take long.
        if not RunFolder(path).has_begun():
            require_optimizers(experiment)
    sessions = [
        stack.enter_context(open_session(experiment, path, reporter)) for experiment, path in experiments
    ]
    for session in sessions:
        name = f"{session.experiment.name}: " if len(sessions) > 1 else ""
        session.reporter.say(f"{name}{session.splits.sizes}")
        if not session.folder.has_begun():
            try_optimizers(session)
    return sessions


def _compare_one_by_one(experiments: Sequence[tuple[Experiment, Path]], reporter: Reporter) -> None:
    missing = []
    for experiment, path in experiments:
        reporter.say(f"{experiment.name}, in {path}")
        try:
            _compare_together([(experiment, path)], reporter)
        except (ValueError, OSError) as error:
            if has_other_processes():
                raise
            reporter.say(f"{experiment.name}: failed: {error}")
            missing.append(f"{experiment.name} is not finished: {error}")
    if missing:
        raise UnitsMissingError("; ".join(missing))


def _put_in_order(sessions: Sequence[Session]) -> None:
    for session in sessions:
        put_in_order(session.folder.results, ComparisonRow, row_order(session.experiment))
