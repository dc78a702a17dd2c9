"""Have units run by workers: each as soon as what it needs is done, and again if it fails."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from pfge.errors import InvalidValueError
from pfge.lab.launch.marks import Marks
from pfge.lab.launch.worker import Job, Pool, Unit, Work, longest_chains, units_to_run

ATTEMPTS = 3
"""After so many failures of a unit, it and what needs it are left out."""
SECONDS_BETWEEN_LOOKS = 0.05
SECONDS_BETWEEN_SHOWS = 1.0


class UnitsMissingError(InvalidValueError):
    """Units failed again and again; all that does not need them is done."""


def drive(works: Sequence[Work], pool: Pool, threads: Callable[[Work], int]) -> None:
    """Have all units run that are not done, some at the same time.

    Args:
        works: The units of one or more experiments, which share the workers.
        pool: The workers.
        threads: Returns how many a unit of an experiment uses.

    Raises:
        UnitsMissingError: Some failed three times.
    """
    _Driver(works, pool, threads).run()


class _Driver:
    def __init__(self, works: Sequence[Work], pool: Pool, threads: Callable[[Work], int]) -> None:
        self._runs = [_Run(work) for work in works]
        self._pool = pool
        self._threads = threads
        self._reporter = works[0].session.reporter
        self._shown = float("-inf")

    def run(self) -> None:
        try:
            with self._reporter.live_lines() as show:
                while any(run.open for run in self._runs):
                    for run in self._runs:
                        run.collect()
                    self._start_more()
                    if not any(run.jobs for run in self._runs):
                        break  # all is done, or the rest needs what failed
                    self._show(show)
                    self._pool.wait(SECONDS_BETWEEN_LOOKS)
        except KeyboardInterrupt:
            # By no other error: jobs of a cluster go on, and the next driver waits for them.
            for run in self._runs:
                run.stop()
            raise
        if missing := [run.describe_missing() for run in self._runs if run.missing]:
            raise UnitsMissingError(f"{'; '.join(missing)}; the same command tries them again")

    def _start_more(self) -> None:
        """Give the pool what may start, the longest chain first, at once: a cluster takes arrays of jobs."""
        free = self._pool.size - sum(len(run.jobs) for run in self._runs)
        ready = [(run, unit) for run in self._runs for unit in run.ready()]
        ready.sort(key=lambda found: -found[0].chains[found[1].name])
        chosen = [(run, unit) for run, unit in ready[: max(free, 0)] if run.prepare(unit.name)]
        if chosen:
            jobs = self._pool.start([run.work.order(unit, self._threads(run.work)) for run, unit in chosen])
            for (run, unit), job in zip(chosen, jobs, strict=True):
                run.jobs[unit.name] = job

    def _show(self, show: Callable[[Sequence[str]], None]) -> None:
        if (now := time.monotonic()) - self._shown >= SECONDS_BETWEEN_SHOWS:
            self._shown = now
            show([line for run in self._runs for line in run.lines()])


class _Run:
    """What is left to do of one experiment."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.open = {unit.name: unit for unit in units_to_run(work.units)}
        self.chains = longest_chains(list(self.open.values()))
        self.jobs: dict[str, Job] = {}
        self.missing: dict[str, str] = {}
        self._session = work.session
        self._marks = Marks(work.session.folder)
        self._failures: Counter[str] = Counter()
        self._heard: Counter[str] = Counter()

    def collect(self) -> None:
        """Note what has ended."""
        for name, job in list(self.jobs.items()):
            if not job.is_over():
                continue
            del self.jobs[name]
            self._listen(name)
            if self.open[name].is_done():
                del self.open[name]
            elif not self._is_run_elsewhere(name) and not isinstance(job, _Elsewhere):
                self._note_failure(name, job.ending())

    def ready(self) -> list[Unit]:
        """Return the units that may start now; those too short for a worker are run."""
        found: list[Unit] = []
        for name, unit in list(self.open.items()):
            idle = name not in self.jobs and name not in self.missing
            if not idle or not unit.may_start(self.open):
                continue
            if unit.by_driver:
                unit.run(self._session)
                del self.open[name]
            else:
                found.append(unit)
        return found

    def prepare(self, name: str) -> bool:
        """Return whether a unit is to be started, without what an earlier attempt left."""
        if self._is_run_elsewhere(name):
            return False
        self._marks.forget(name)
        self._heard[name] = 0
        return True

    def lines(self) -> list[str]:
        """Return a line for each unit that runs."""
        for name in self.jobs:
            self._listen(name)
        return [f"{self._title(name)}  {self._marks.progress(name)}".rstrip() for name in self.jobs]

    def stop(self) -> None:
        """End all jobs."""
        for job in self.jobs.values():
            job.stop()

    def describe_missing(self) -> str:
        """Return which units are missing, and why."""
        waiting = [name for name in self.open if name not in self.missing]
        failed = "; ".join(f"{name} failed {ATTEMPTS} times: {why}" for name, why in self.missing.items())
        needing = f"; left out, as they need it: {', '.join(waiting)}" if waiting else ""
        return f"{len(self.open)} parts of {self._session.folder.path} are missing; {failed}{needing}"

    def _is_run_elsewhere(self, name: str) -> bool:
        """Return whether a worker that this driver does not know runs a unit, which is then waited for.

        Jobs of a cluster outlive their driver.
        """
        if self._marks.is_running(name):
            self.jobs[name] = _Elsewhere(self._marks, name)
        return name in self.jobs

    def _note_failure(self, name: str, ending: str) -> None:
        reason = self._marks.failure(name)
        if reason is None:  # it had no time to say why
            self._marks.note_failure(name, reason := ending)
        self._failures[name] += 1
        if self._failures[name] < ATTEMPTS:
            self._session.reporter.say(f"{self._title(name)}: failed, and starts again: {reason}")
        else:
            self._session.reporter.say(f"{self._title(name)}: failed {ATTEMPTS} times: {reason}")
            self.missing[name] = reason

    def _listen(self, name: str) -> None:
        """Repeat what a unit said."""
        lines, self._heard[name] = self._marks.said(name, self._heard[name])
        for line in lines:
            self._session.reporter.say(line)

    def _title(self, name: str) -> str:
        return f"{self.work.title}, {name}" if self.work.title else name


class _Elsewhere:
    """A unit that is run by a worker of an earlier driver."""

    def __init__(self, marks: Marks, unit: str):
        self._marks = marks
        self._unit = unit

    def is_over(self) -> bool:
        return not self._marks.is_running(self._unit)

    def ending(self) -> str:
        return "its worker ended"

    def stop(self) -> None:
        """Leave it: it is not this driver's."""
