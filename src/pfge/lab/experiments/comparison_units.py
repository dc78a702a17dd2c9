"""The units of a comparison: w0 of each seed, the paths from it, and the measuring of each ensemble."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pfge.lab.config.schema import Experiment
from pfge.lab.config.toml import load_experiment
from pfge.lab.data.ordering import count_batches
from pfge.lab.evaluation.record import record_collected, record_ensemble
from pfge.lab.experiments.baselines import (
    record_augmented,
    record_deep_ensemble,
    record_mc_dropout,
    save_deep_ensemble,
)
from pfge.lab.experiments.paths import (
    fork_file,
    has_period,
    join_periods,
    train_own,
    train_period,
    train_shared,
    unfinished_work,
)
from pfge.lab.launch.unit import Unit
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.kept_data import kept_count
from pfge.lab.run.result_lines import require_rows
from pfge.lab.run.results import ComparisonRow, expected_rows
from pfge.lab.session import Session
from pfge.lab.training.pretrain import find_w0
from pfge.methods import METHODS, START, Method, base_of, starred

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
            lambda session: session.engine.first_does(lambda: _tidy(folder)),
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
