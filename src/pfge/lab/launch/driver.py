"""Have units run by workers: each as soon as what it needs is done, and again if it fails."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from pfge.lab.launch.marks import Marks
from pfge.lab.launch.unit import Unit, units_to_run
from pfge.lab.session import Session

ATTEMPTS = 3
"""After so many failures of a unit, it and what needs it are left out."""
SECONDS_BETWEEN_LOOKS = 0.05


class UnitsMissingError(ValueError):
    """Units failed again and again; all that does not need them is done."""


class Job(Protocol):
    """A unit that a worker runs."""

    def is_over(self) -> bool:
        """Return whether the worker has ended, well or not."""

    def ending(self) -> str:
        """Return how the worker ended, for a unit that is not done after it."""

    def stop(self) -> None:
        """End the worker now."""


def drive(session: Session, units: Sequence[Unit], start: Callable[[Unit], Job], workers: int) -> None:
    """Have all units run that are not done, some at the same time.

    Args:
        session: The experiment, whose run folder this process has locked.
        units: All of them.
        start: Gives a unit to a worker.
        workers: How many units run at once.

    Raises:
        UnitsMissingError: Some failed three times.
    """
    _Driver(session, units, start, workers).run()


class _Driver:
    def __init__(
        self, session: Session, units: Sequence[Unit], start: Callable[[Unit], Job], workers: int
    ) -> None:
        self._session = session
        self._marks = Marks(session.folder)
        self._start = start
        self._workers = workers
        self._open = {unit.name: unit for unit in units_to_run(units)}
        self._jobs: dict[str, Job] = {}
        self._failures: Counter[str] = Counter()
        self._missing: dict[str, str] = {}

    def run(self) -> None:
        try:
            while self._open:
                self._collect()
                self._start_more()
                if not self._jobs and self._open:
                    break  # the rest needs what failed
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            for job in self._jobs.values():
                job.stop()
        if self._missing:
            self._report_missing()

    def _collect(self) -> None:
        """Note what has ended."""
        for name, job in list(self._jobs.items()):
            if not job.is_over():
                continue
            del self._jobs[name]
            if self._open[name].is_done():
                del self._open[name]
            else:
                self._note_failure(name, job.ending())

    def _note_failure(self, name: str, ending: str) -> None:
        reason = self._marks.failure(name)
        if reason is None:  # it had no time to say why
            self._marks.note_failure(name, reason := ending)
        self._failures[name] += 1
        if self._failures[name] < ATTEMPTS:
            self._session.reporter.say(f"{name}: failed, and starts again: {reason}")
        else:
            self._session.reporter.say(f"{name}: failed {ATTEMPTS} times: {reason}")
            self._missing[name] = reason

    def _start_more(self) -> None:
        for name, unit in list(self._open.items()):
            idle = name not in self._jobs and name not in self._missing
            if not idle or not unit.may_start(self._open):
                continue
            if unit.by_driver:
                unit.run(self._session)
                del self._open[name]
            elif len(self._jobs) < self._workers:
                self._marks.forget_failure(name)
                self._jobs[name] = self._start(unit)

    def _report_missing(self) -> None:
        waiting = [name for name in self._open if name not in self._missing]
        failed = "; ".join(f"{name} failed {ATTEMPTS} times: {why}" for name, why in self._missing.items())
        needing = f"; left out, as they need it: {', '.join(waiting)}" if waiting else ""
        raise UnitsMissingError(
            f"{len(self._open)} parts of {self._session.folder.path} are missing; {failed}{needing}; the "
            "same command tries them again"
        )
