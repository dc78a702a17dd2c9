"""Run units in a process that has nothing but an order: the experiment, its folder and a unit's name."""

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from pfge.lab.config.schema import Experiment
from pfge.lab.engine import Engine
from pfge.lab.launch.marks import Marks, is_users_mistake
from pfge.lab.launch.told_progress import WorkerReporter
from pfge.lab.launch.unit import Unit, is_to_run
from pfge.lab.run.folder import RunFolder
from pfge.lab.session import Session

MakeUnits = Callable[[Experiment, RunFolder, int], list[Unit]]
"""Returns the units of an experiment in a run folder, for a number of iterations in an epoch.

It is sent to workers, so it is a function of a module, or a `functools.partial` of one.
"""


@dataclass(frozen=True)
class Order:
    """What a worker is told.

    Attributes:
        experiment: Whose unit it is.
        folder: The run folder, which the driver has locked.
        make_units: Returns the units of the experiment.
        unit: The name of the one to run.
        threads: How many to use.
        working_folder: That of the driver, from which paths in the config start.
    """

    experiment: Experiment
    folder: Path
    make_units: MakeUnits
    unit: str
    threads: int
    working_folder: Path


class Worker:
    """A process that carries out orders; it keeps the data of the last experiment."""

    def __init__(self) -> None:
        self._last: tuple[Session, WorkerReporter] | None = None

    def carry_out(self, order: Order) -> bool:
        """Run a unit, unless it is done; return whether it succeeded. If not, its mark says why."""
        marks = Marks(RunFolder(order.folder))
        try:
            run_unit(self._session_for(order, marks), order.make_units, order.unit)
        except Exception as error:
            if not marks.note_failure(order.unit, error):  # the terminal or the log of the job is left
                print(f"pfge: warning: {order.unit}: failed: {error}", file=sys.stderr)
            if not is_users_mistake(error):
                marks.say(order.unit, traceback.format_exc())
            self._last = None
            return False
        return True

    def _session_for(self, order: Order, marks: Marks) -> Session:
        if order.working_folder.is_dir():
            os.chdir(order.working_folder)
        torch.set_num_threads(order.threads)
        last = self._last if self._is_last(order) else None
        if last is None:
            self._last = None  # before the next is loaded: memory is for the data of one experiment
            last = self._last = _set_up(order, marks)
        session, reporter = last
        reporter.unit = order.unit
        return session

    def _is_last(self, order: Order) -> bool:
        if self._last is None:
            return False
        session, _ = self._last
        return (session.experiment, session.folder.path) == (order.experiment, order.folder)


def _set_up(order: Order, marks: Marks) -> tuple[Session, WorkerReporter]:
    reporter = WorkerReporter(marks)
    reporter.unit = order.unit
    warnings.showwarning = lambda message, *_, **__: reporter.say(f"pfge: warning: {message}")
    engine = Engine(order.experiment.on_one_device().engine)
    return Session.set_up(order.experiment, RunFolder(order.folder), engine, reporter), reporter


def iterations_per_epoch(session: Session) -> int:
    """Return how many iterations an epoch has."""
    return session.batches(session.experiment.seeds[0], "ensembling").per_epoch


def run_unit(session: Session, make_units: MakeUnits, name: str) -> None:
    """Run a unit of an experiment, unless it is done by now.

    The run folder itself is locked by the driver, the unit by this process.
    """
    units = make_units(session.experiment, session.folder, iterations_per_epoch(session))
    if not is_to_run(units, name):
        return  # a job that waited in a queue, while another did it
    unit = next(unit for unit in units if unit.name == name)
    with Marks(session.folder).held(name):
        if not unit.is_done():
            unit.run(session)
