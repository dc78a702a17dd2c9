"""A worker: receives units as plain data, loads their experiment, and runs them one after another."""

import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from pfge.lab.config.settings import Experiment
from pfge.lab.engine import Engine
from pfge.lab.launch.units import Unit, UnitStatus, find_dependents, is_to_run, is_users_mistake
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Advance, Reporter
from pfge.lab.session import Session


@dataclass(frozen=True)
class WorkerTask:
    """A unit to run, with everything that a worker needs for it.

    Attributes:
        experiment: The experiment of the unit.
        folder: The run folder, which the driver has locked.
        unit: The unit.
        dependents: All units that need it, directly or through others.
        threads: Number of threads to use.
        working_folder: Working folder of the driver, to which paths in the config are relative.
    """

    experiment: Experiment
    folder: Path
    unit: Unit
    dependents: tuple[Unit, ...]
    threads: int
    working_folder: Path


class Worker:
    """A process that runs one task after another; it keeps the data of the last experiment."""

    def __init__(self) -> None:
        self._last: tuple[Session, WorkerReporter] | None = None

    def run(self, task: WorkerTask) -> bool:
        """Run a unit unless it is done; return whether it succeeded. If not, its status has the reason."""
        name, status = task.unit.name, UnitStatus(RunFolder(task.folder))
        try:
            _run_unit(self._session_for(task, status), task.unit, task.dependents)
        except Exception as error:
            if not status.note_failure(name, error):  # only the terminal or the log of the job is left
                print(f"pfge: warning: {name}: failed: {error}", file=sys.stderr)
            if not is_users_mistake(error):
                status.say(name, traceback.format_exc())
            self._last = None
            return False
        return True

    def _session_for(self, task: WorkerTask, status: UnitStatus) -> Session:
        if task.working_folder.is_dir():
            os.chdir(task.working_folder)
        torch.set_num_threads(task.threads)
        last = self._last if self._is_last(task) else None
        if last is None:
            self._last = None  # frees the memory of the last experiment's data before the next is loaded
            last = self._last = _set_up(task, status)
        session, reporter = last
        reporter.unit = task.unit.name
        return session

    def _is_last(self, task: WorkerTask) -> bool:
        if self._last is None:
            return False
        session, _ = self._last
        return (session.experiment, session.folder.path) == (task.experiment, task.folder)


def _set_up(task: WorkerTask, status: UnitStatus) -> "tuple[Session, WorkerReporter]":
    reporter = WorkerReporter(status)
    reporter.unit = task.unit.name
    warnings.showwarning = lambda message, *_, **__: reporter.say(f"pfge: warning: {message}")
    engine = Engine(task.experiment.on_one_device().engine)
    return Session.set_up(task.experiment, RunFolder(task.folder), engine, reporter), reporter


def _run_unit(session: Session, unit: Unit, dependents: Sequence[Unit]) -> None:
    """Run a unit unless it is done by now. The driver holds the lock of the run, this process the unit's."""
    if not is_to_run(unit, dependents):
        return  # another worker did it while this job was queued
    with UnitStatus(session.folder).held(unit.name):
        if not unit.is_done():
            unit.run(session)


class Job(Protocol):
    """A unit that a worker runs."""

    def is_over(self) -> bool:
        """Return whether the worker has ended, successfully or not."""

    def ending(self) -> str:
        """Return how the worker ended, for a unit that is not done afterwards."""

    def stop(self) -> None:
        """End the worker now."""


class Executor(Protocol):
    """Workers, or a scheduler that starts them."""

    @property
    def size(self) -> int:
        """How many units it accepts at once."""

    def start(self, tasks: Sequence[WorkerTask]) -> Sequence[Job]:
        """Start tasks, and return the job of each."""

    def wait(self, seconds: float) -> None:
        """Return when a job may be over, or after some seconds at the latest."""


MakeUnits = Callable[[Experiment, RunFolder, int], list[Unit]]
"""Returns the units of an experiment in a run folder, given the number of iterations of an epoch."""


@dataclass(frozen=True)
class ExperimentUnits:
    """All units of an experiment.

    Attributes:
        session: The experiment; this process has locked its run folder.
        units: Each unit after those that it needs.
        title: Shown before the names of units; "" for the only experiment.
    """

    session: Session
    units: Sequence[Unit]
    title: str = ""

    @classmethod
    def of(cls, session: Session, make_units: MakeUnits, title: str = "") -> "ExperimentUnits":
        """Make the units of a session, once: workers get them as they are."""
        folder = RunFolder(session.folder.path.absolute())  # workers may have another working folder
        return cls(session, make_units(session.experiment, folder, iterations_per_epoch(session)), title)

    def task(self, unit: Unit, threads: int) -> WorkerTask:
        """Return the task of a unit for a worker."""
        return WorkerTask(
            self.session.experiment,
            self.session.folder.path.absolute(),
            unit,
            find_dependents(self.units, unit.name),
            threads,
            Path.cwd(),
        )


def iterations_per_epoch(session: Session) -> int:
    """Return the number of iterations of an epoch."""
    return session.batches(session.experiment.seeds[0], "ensembling").per_epoch


SECONDS_BETWEEN_NOTES = 1.0


class WorkerReporter(Reporter):
    """Write progress to the status of the unit that a worker runs.

    Args:
        status: The status of the run's units.
    """

    def __init__(self, status: UnitStatus):
        super().__init__(quiet=True)
        self._status = status
        self.unit = ""

    def say(self, text: str) -> None:
        """Leave a line for the driver to print."""
        self._status.say(self.unit, text)

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:  # noqa: ARG002 - the unit has a name
        """Write the progress of a piece of work while the context lasts."""
        yield _advance(self._status, self.unit, total)


def _advance(status: UnitStatus, unit: str, total: int) -> Advance:
    last_note = float("-inf")
    first: tuple[float, int] | None = None

    def advance(done: int, note: str) -> None:
        nonlocal last_note, first
        now = time.monotonic()
        first = first or (now, done)
        if now - last_note >= SECONDS_BETWEEN_NOTES:
            last_note = now
            status.note_progress(unit, describe_progress(done, total, done - first[1], now - first[0], note))

    return advance


def describe_progress(done: int, total: int, recently: int, seconds: float, note: str) -> str:
    """Return the steps done, the speed and the time left.

    Args:
        done: Number of steps done.
        total: Number of all steps.
        recently: Number of steps done in the last `seconds`.
        seconds: Time that those steps took.
        note: Other information, such as the loss.

    >>> describe_progress(300, 900, 200, 10.0, "loss 0.1")
    '300/900, 20.0/s, 0:00:30 left, loss 0.1'
    """
    parts = [f"{done:,}/{total:,}"]
    if recently > 0 and seconds > 0:
        rate = recently / seconds
        left = round((total - done) / rate)
        parts += [f"{rate:.1f}/s", f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"]
    return ", ".join([*parts, *([" ".join(note.split())] if note else [])])
