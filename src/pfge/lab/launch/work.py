"""The units of one experiment, and where they are run: what a driver is given."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pfge.lab.launch.unit import Unit
from pfge.lab.launch.worker import MakeUnits, Order, iterations_per_epoch
from pfge.lab.session import Session


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
