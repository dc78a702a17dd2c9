"""A worker: receives a task as plain data, loads the experiment, and runs one unit."""

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from pfge.lab.config.settings import Experiment
from pfge.lab.engine import Engine
from pfge.lab.launch.marks import Marks, WorkerReporter, is_users_mistake
from pfge.lab.run.folder import RunFolder
from pfge.lab.session import Session


@dataclass(frozen=True)
class Unit:
    """A part of an experiment. Its results are files, which also tell whether it is done.

    Attributes:
        name: Differs from that of every other unit of the experiment.
        is_done: Returns whether its results are there.
        run: Makes them, and continues where a killed process stopped.
        needs: The names of the units that must be done before.
        early: A file that is enough in place of all that it needs, as soon as it exists.
        iterations: Updates that it trains for, at the most.
        by_driver: Whether it is too short for a process of its own.
    """

    name: str
    is_done: Callable[[], bool]
    run: Callable[[Session], None]
    needs: tuple[str, ...] = ()
    early: Path | None = None
    iterations: int = 0
    by_driver: bool = False

    def may_start(self, open_units: Mapping[str, object]) -> bool:
        """Return whether none of what it needs is among the units that are still open."""
        waits = any(name in open_units for name in self.needs)
        return not waits or (self.early is not None and self.early.exists())


def units_to_run(units: Sequence[Unit]) -> list[Unit]:
    """Return the units that are not done and that the end of the experiment needs, in their order.

    What only a finished unit needed may have been removed since, and is not made again.
    """
    by_name = {unit.name: unit for unit in units}
    needed = {name for unit in units for name in unit.needs}
    found: set[str] = set()
    open_ends = [unit for unit in units if unit.name not in needed]
    while open_ends:
        unit = open_ends.pop()
        if unit.name not in found and not unit.is_done():
            found.add(unit.name)
            open_ends += [by_name[name] for name in unit.needs]
    return [unit for unit in units if unit.name in found]


def is_to_run(units: Sequence[Unit], name: str) -> bool:
    """Return whether one of the units is among those of `units_to_run`, without looking at all of them."""
    (unit,) = (unit for unit in units if unit.name == name)
    if unit.is_done():
        return False
    needing = [other.name for other in units if name in other.needs]
    return not needing or any(is_to_run(units, other) for other in needing)


def longest_chains(units: Sequence[Unit]) -> dict[str, int]:
    """Return the iterations of the longest chain that begins with each unit, itself and what needs it.

    Args:
        units: Each after those that it needs.
    """
    after = dict.fromkeys((unit.name for unit in units), 0)
    chains: dict[str, int] = {}
    for unit in reversed(units):
        chains[unit.name] = unit.iterations + after[unit.name]
        for need in set(unit.needs) & after.keys():
            after[need] = max(after[need], chains[unit.name])
    return chains


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


class Job(Protocol):
    """A unit that a worker runs."""

    def is_over(self) -> bool:
        """Return whether the worker has ended, well or not."""

    def ending(self) -> str:
        """Return how the worker ended, for a unit that is not done after it."""

    def stop(self) -> None:
        """End the worker now."""


class Pool(Protocol):
    """Workers, or a scheduler that has them."""

    @property
    def size(self) -> int:
        """How many units it is given at once."""

    def start(self, orders: Sequence[Order]) -> Sequence[Job]:
        """Have units run, and return the job of each."""

    def wait(self, seconds: float) -> None:
        """Return when a job may be over, or after some seconds at the most."""


@dataclass(frozen=True)
class Work:
    """The units of an experiment.

    Attributes:
        session: The experiment, whose run folder this process has locked.
        units: All of them.
        make_units: Returns them in a worker.
        title: Of the experiment, before the names of units; "" if there is no other.
    """

    session: Session
    units: Sequence[Unit]
    make_units: MakeUnits
    title: str = ""

    @classmethod
    def of(cls, session: Session, make_units: MakeUnits, title: str = "") -> "Work":
        """Return the work of a session."""
        units = make_units(session.experiment, session.folder, iterations_per_epoch(session))
        return cls(session, units, make_units, title)

    def order(self, unit: Unit, threads: int) -> Order:
        """Return what a worker is told for a unit."""
        experiment, folder = self.session.experiment, self.session.folder.path.absolute()
        return Order(experiment, folder, self.make_units, unit.name, threads, Path.cwd())
