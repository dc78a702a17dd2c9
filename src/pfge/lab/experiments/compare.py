"""Compare methods: the units of a comparison and their results."""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

from pfge.ensemble import Ensemble
from pfge.forward import call_model
from pfge.lab.config.settings import Experiment
from pfge.lab.config.toml import load_experiment
from pfge.lab.data.batches import count_batches
from pfge.lab.engine import Engine, has_other_processes
from pfge.lab.evaluation.passes import augmented_passes, mc_dropout, views_in
from pfge.lab.evaluation.record import record_collected, record_ensemble, saved_ensemble
from pfge.lab.experiments.paths import (
    fork_file,
    has_period,
    join_periods,
    train_own,
    train_period,
    train_shared,
    unfinished_work,
)
from pfge.lab.launch.driver import UnitsMissingError
from pfge.lab.launch.launch import launch
from pfge.lab.launch.simulation import SimulatedUnit, simulate
from pfge.lab.launch.worker import Unit, iterations_per_epoch, units_to_run
from pfge.lab.run.folder import RunFolder
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
from pfge.methods import METHODS, START, Method, TrainingPlan, base_of, starred


def save_deep_ensemble(session: Session, seed: int, name: str, count: int) -> None:
    """Save members that were trained from starts of their own, w0 being the first."""
    members = [find_w0(session, seed, number) for number in range(1, count + 1)]
    # Not refreshed: each has the BatchNorm statistics of its own training.
    ensemble = session.make_ensemble(members, method=f"{name}({count})")
    session.engine.on_rank_zero(lambda: ensemble.save(session.folder.ensemble(seed, name)))


def record_deep_ensemble(session: Session, seed: int, name: str, count: int) -> None:
    """Measure a saved deep ensemble."""
    cost = (count - 1) * pretraining_iterations(session, seed)
    ensemble = saved_ensemble(session, seed, name)
    record_ensemble(session, seed, name, ensemble, iterations=cost, trainings=count)


def record_mc_dropout(session: Session, seed: int, name: str, samples: int) -> None:
    """Measure w0 with dropout left on."""
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
    """Return the one model of another method as it sees pictures that are shifted and mirrored."""
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


def record_augmented(session: Session, seed: int, method: Method, setting: TrainingPlan) -> None:
    """Measure the one model of another method on pictures that are shifted and mirrored."""
    ensemble = augmented_ensemble(session, seed, method, setting)
    record_ensemble(session, seed, method.name, ensemble, iterations=setting.iterations)


OTHER_PATHS = ("own", "trainings", "start", "augmented")
"""The paths of methods whose rows come after those of the shared path, in this order."""


def comparison_units(experiment: Experiment, folder: RunFolder, per_epoch: int) -> list[Unit]:
    """Return the units of a comparison; each comes after those that it needs.

    Args:
        experiment: The comparison.
        folder: Its run folder.
        per_epoch: Iterations of an epoch.
    """
    return [
        unit for seed in experiment.seeds for unit in _UnitsOfSeed(experiment, folder, per_epoch, seed).make()
    ]


def start_units(experiment: Experiment, folder: RunFolder, per_epoch: int) -> list[Unit]:
    """Return the units of a comparison that make w0, for the arguments of `comparison_units`."""
    return [_UnitsOfSeed(experiment, folder, per_epoch, seed).make()[0] for seed in experiment.seeds]


def units_of_run(folder: RunFolder) -> list[Unit]:
    """Return the units of the comparison in a folder, for looking at them: its data is not read.

    Raises:
        StorageError: There is no run, or it has not begun.
    """
    folder.require_run()
    experiment = load_experiment(folder.config)
    per_epoch = count_batches(kept_count(folder, "train"), experiment.data.batch_size)
    return comparison_units(experiment, folder, per_epoch)


def row_order(experiment: Experiment) -> list[tuple[int, str]]:
    """Return the seed and the name of each row, in the order in which one process makes them."""
    others = [method.name for path in OTHER_PATHS for method in _chosen(experiment, path)]
    rows = [START, *_shared_rows(experiment).values(), *others]
    return [(seed, name) for seed in experiment.seeds for row in rows for name in (starred(row), row)]


class _UnitsOfSeed:
    """The units of one seed, made in the order of its results."""

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
            run = partial(record_augmented, seed=self._seed, method=method, setting=self._setting)
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
            lambda: all(self._folder.has_ensemble(self._seed, row) for row in rows.values()),
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
            partial(run, seed=self._seed, setting=self._setting, method=method),
            *needs,
            early=early,
            iterations=iterations,
        )
        self._add_measuring_of_path(method.name, path)

    def _add_period(self, method: Method, number: int) -> str:
        return self._add(
            f"{method.name}, period {number}",
            partial(has_period, self._folder, self._seed, method.name, number),
            partial(train_period, seed=self._seed, setting=self._setting, method=method, number=number),
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
        self._measuring.append(self._add(f"measure {row}", lambda: row in self._measured(), run, *needs))

    def _add_tidying(self) -> None:
        expected = expected_rows(self._experiment.ensemble.methods)
        folder = self._folder.seed_path(self._seed)
        self._add(
            "tidy",
            lambda: not unfinished_work(folder) and self._measured() >= expected,
            lambda session: session.engine.on_rank_zero(lambda: _tidy(folder)),
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
        if unit.name not in [other.name for other in self._units]:  # two methods may need the same start
            self._units.append(unit)
        return unit.name

    def _measured(self) -> set[str]:
        rows = require_rows(self._folder.results, ComparisonRow)
        return {row.method for row in rows if row.seed == self._seed}


def _chosen(experiment: Experiment, path: str) -> list[Method]:
    """Return the experiment's methods of a path, in the order of the table."""
    names = experiment.ensemble.methods
    return [method for method in METHODS.values() if method.path == path and method.name in names]


def _shared_rows(experiment: Experiment) -> dict[str, str]:
    """Return the row of each method of the shared path: all of its members, or only the last."""
    methods = experiment.ensemble.methods
    return {
        name: name if name in methods else starred(name)
        for name in dict.fromkeys(map(base_of, methods))
        if METHODS[name].path == "shared"
    }


def _find_start(session: Session, seed: int, number: int) -> None:
    find_w0(session, seed, number)


def _record_w0(session: Session, seed: int) -> None:
    w0 = session.make_ensemble([find_w0(session, seed)], method=START, iterations=[0])
    record_ensemble(session, seed, START, w0)


def _tidy(folder: Path) -> None:
    """Remove what only an unfinished run needs."""
    for path in unfinished_work(folder):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


WARM_UP, TIMED = 2, 5
"""Training steps."""


@dataclass(frozen=True)
class Cost:
    """What is left to do of a comparison.

    Attributes:
        units: Those that are not done.
        done: How many are.
        step: Seconds of one iteration on this machine.
        data: The number of examples in each part of the data, in words.
    """

    units: Sequence[Unit]
    done: int
    step: float
    data: str = ""

    @property
    def iterations(self) -> int:
        """The updates of all units."""
        return sum(unit.iterations for unit in self.units)

    def seconds(self, workers: int) -> float:
        """Return how long training takes with some workers, each as fast as one alone."""
        return seconds_of_all([self], workers)


def find_cost(experiment: Experiment, path: Path, reporter: Reporter) -> Cost:
    """Return what is left to do, after timing a few steps; nothing is written.

    Raises:
        StorageError: The folder has a run of another config, or of other data.
    """
    folder = RunFolder(path)
    folder.require_same_config(experiment, more_seeds=True)
    session = Session.set_up(experiment, folder, Engine(experiment.engine), reporter)
    units = comparison_units(experiment, folder, iterations_per_epoch(session))
    to_run = units_to_run(units)
    return Cost(to_run, len(units) - len(to_run), _time_step(session), session.splits.sizes)


def seconds_of_all(costs: Sequence[Cost], workers: int) -> float:
    """Return how long the training of experiments takes that share workers, each as fast as one alone."""
    ends = simulate(
        [
            SimulatedUnit((number, unit.name), cost.step * unit.iterations, [(number, n) for n in unit.needs])
            for number, cost in enumerate(costs)
            for unit in cost.units
        ],
        workers,
    )
    return max(ends.values(), default=0.0)


def _time_step(session: Session) -> float:
    settings = session.experiment.ensemble
    model = session.build_seeded_model(0)
    optimizer = make_optimizer(model, settings, rate=settings.low)
    wrapped = session.engine.wrap(model, optimizer)
    model.train()
    seconds = []
    source = session.batches(0, "timing").starting_after(0)
    for batch in islice(source, WARM_UP + TIMED):
        before = time.perf_counter()
        optimizer.zero_grad()
        loss = session.task.loss(call_model(wrapped, batch), batch[1])
        session.engine.backward(loss)
        optimizer.step()
        loss.item()  # waits for the device
        seconds.append(time.perf_counter() - before)
    return median(seconds[WARM_UP:])


def compare(experiment: Experiment, path: Path, reporter: Reporter) -> list[ComparisonRow]:
    """Run or continue a comparison in a folder, and return all its results.

    Raises:
        UnitsMissingError: Parts of it failed again and again; the results of all others are in the folder.
    """
    (rows,) = compare_all([(experiment, path)], reporter)
    return rows


def compare_all(
    experiments: Sequence[tuple[Experiment, Path]], reporter: Reporter
) -> list[list[ComparisonRow]]:
    """Run or continue comparisons, each in its folder, which share the workers; return the results of each.

    In this process, they run one after another, and one that fails does not keep the others from running. If
    each has several processes, the first that fails ends all: a process that does not see the failure would
    meet others in the next experiment while it is still in this one.

    Raises:
        UnitsMissingError: As of `compare`.
    """
    if len(experiments) > 1 and experiments[0][0].engine.chosen_launcher.is_this_process:
        return _compare_one_by_one(experiments, reporter)
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
    return [require_rows(session.folder.results, ComparisonRow) for session in sessions]


def find_all_w0(experiments: Sequence[tuple[Experiment, Path]], reporter: Reporter) -> None:
    """Train or load w0 for every seed of experiments, each in its folder, where `engine.launcher` says.

    Raises:
        UnitsMissingError: As of `compare`.
    """
    with ExitStack() as stack:
        sessions = _open_all(stack, experiments, reporter)
        launch(sessions, start_units)


def _open_all(
    stack: ExitStack, experiments: Sequence[tuple[Experiment, Path]], reporter: Reporter
) -> list[Session]:
    """Open a session in each folder and report the size of its data.

    In a new run, optimizers that cannot be made are refused.
    """
    for experiment, path in experiments:
        # Before the data is read, which may take long.
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


def _compare_one_by_one(
    experiments: Sequence[tuple[Experiment, Path]], reporter: Reporter
) -> list[list[ComparisonRow]]:
    found, missing = [], []
    for experiment, path in experiments:
        reporter.say(f"{experiment.name}, in {path}")
        try:
            found.append(compare(experiment, path, reporter))
        except (ValueError, OSError) as error:
            if has_other_processes():
                raise
            reporter.say(f"{experiment.name}: failed: {error}")
            missing.append(f"{experiment.name} is not finished: {error}")
    if missing:
        raise UnitsMissingError("; ".join(missing))
    return found


def _put_in_order(sessions: Sequence[Session]) -> None:
    for session in sessions:
        put_in_order(session.folder.results, ComparisonRow, row_order(session.experiment))
