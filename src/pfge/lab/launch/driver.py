"""Run the units of experiments in workers: each as soon as it may start, and again if it fails."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from pfge.errors import InvalidValueError
from pfge.lab.config.launchers import Launcher
from pfge.lab.config.settings import ConfigError
from pfge.lab.launch.processes import processes
from pfge.lab.launch.ray_tasks import ray_tasks
from pfge.lab.launch.slurm_jobs import slurm_jobs
from pfge.lab.launch.units import Unit, UnitStatus, longest_chains, units_to_run
from pfge.lab.launch.worker import Executor, ExperimentUnits, Job, MakeUnits
from pfge.lab.session import Session

ATTEMPTS = 3
"""After this many failures of a unit, it and the units that need it are left out."""
SECONDS_BETWEEN_LOOKS = 0.05
SECONDS_BETWEEN_SHOWS = 1.0


class UnitsMissingError(InvalidValueError):
    """Units failed three times; all units that do not need them are done."""


def launch(sessions: Sequence[Session], make_units: MakeUnits) -> None:
    """Run all units that are not done, where `engine.launcher` says.

    Args:
        sessions: Experiments whose run folders this process has locked; they share the workers.
        make_units: Returns the units of each.

    Raises:
        UnitsMissingError: Units failed three times; all units that do not need them are done.
        ConfigError: The launcher starts workers, and the units of an experiment need several processes.
    """
    several = len(sessions) > 1
    experiments = [
        ExperimentUnits.of(session, make_units, session.experiment.name if several else "")
        for session in sessions
    ]
    launcher = sessions[0].experiment.engine.chosen_launcher
    try:
        if launcher.is_this_process:
            for experiment in experiments:
                _run_here(experiment.session, experiment.units)
        elif any(units_to_run(experiment.units) for experiment in experiments):
            for session in sessions:
                _require_one_process(session)
            chosen, threads = _WORKERS[launcher.kind](launcher, sessions)
            with chosen as executor:
                drive(experiments, executor, threads)
    finally:
        for experiment in experiments:
            if experiment.session.engine.is_first and not units_to_run(experiment.units):
                UnitStatus(experiment.session.folder).remove()
    for session in sessions:
        session.engine.wait_for_all()


def _run_here(session: Session, units: Sequence[Unit]) -> None:
    """Run the units that are not done in this process; the first error ends it."""
    status = UnitStatus(session.folder)
    to_run = units_to_run(units)
    session.engine.wait_for_all()  # no process writes before all have checked
    for unit in to_run:
        with status.held(unit.name) if session.engine.is_first else nullcontext():
            unit.run(session)
        session.engine.wait_for_all()


Workers = tuple[AbstractContextManager[Executor], Callable[[Session], int]]
"""Workers, and what returns the number of threads for the units of a session."""


def _workers_here(launcher: Launcher, _: Sequence[Session]) -> Workers:
    threads = max(torch.get_num_threads() // launcher.processes, 1)
    return processes(launcher.processes), lambda _: threads


def _workers_of_ray(launcher: Launcher, sessions: Sequence[Session]) -> Workers:
    return ray_tasks(launcher.argument, [session.experiment for session in sessions]), _cpus


def _workers_of_slurm(launcher: Launcher, sessions: Sequence[Session]) -> Workers:
    return slurm_jobs(sessions[0].folder.units, is_local=launcher.argument == "local"), _cpus


def _cpus(session: Session) -> int:
    return session.experiment.engine.cpus


_WORKERS: dict[str, Callable[[Launcher, Sequence[Session]], Workers]] = {
    "here": _workers_here,
    "ray": _workers_of_ray,
    "slurm": _workers_of_slurm,
}
"""The workers of each launcher; `lab/config/launchers.py` has how it is written."""


def _require_one_process(session: Session) -> None:
    engine, count = session.experiment.engine, session.engine.rank_and_world_size[1]
    if count > 1 or str(engine.devices) not in ("1", "auto") or engine.nodes != 1:
        raise ConfigError(
            f"engine.launcher = {engine.launcher!r} is for units of one process each, got engine.devices = "
            f"{engine.devices}, engine.nodes = {engine.nodes} and {count} processes; set engine.devices and "
            "engine.nodes to 1, or engine.launcher to here"
        )


def drive(
    experiments: Sequence[ExperimentUnits], executor: Executor, threads: Callable[[Session], int]
) -> None:
    """Run all units that are not done in workers, some at the same time.

    Args:
        experiments: The units of one or more experiments, which share the workers.
        executor: The workers.
        threads: Returns the number of threads for the units of a session.

    Raises:
        UnitsMissingError: Units failed three times.
    """
    _Driver(experiments, executor, threads).run()


class _Driver:
    def __init__(
        self, experiments: Sequence[ExperimentUnits], executor: Executor, threads: Callable[[Session], int]
    ) -> None:
        self._runs = [_Run(experiment) for experiment in experiments]
        self._executor = executor
        self._threads = threads
        self._reporter = experiments[0].session.reporter
        self._shown = float("-inf")

    def run(self) -> None:
        try:
            with self._reporter.live_lines() as show:
                while any(run.open for run in self._runs):
                    for run in self._runs:
                        run.collect()
                    self._start_more()
                    if not any(run.jobs for run in self._runs):
                        break  # all units are done, or need a unit that failed
                    self._show(show)
                    self._executor.wait(SECONDS_BETWEEN_LOOKS)
        except KeyboardInterrupt:
            # Other errors leave the jobs of a cluster running, and the next driver waits for them.
            for run in self._runs:
                run.stop()
            raise
        if missing := [run.describe_missing() for run in self._runs if run.missing]:
            raise UnitsMissingError(f"{'; '.join(missing)}; the same command tries them again")

    def _start_more(self) -> None:
        """Start units, the longest chain first, in one call: a cluster takes arrays of jobs."""
        free = self._executor.size - sum(len(run.jobs) for run in self._runs)
        ready = [(run, unit) for run in self._runs for unit in run.ready()]
        ready.sort(key=lambda found: -found[0].chains[found[1].name])
        chosen = [(run, unit) for run, unit in ready[: max(free, 0)] if run.prepare(unit.name)]
        if chosen:
            tasks = [run.units.task(unit, self._threads(run.units.session)) for run, unit in chosen]
            jobs = self._executor.start(tasks)
            for (run, unit), job in zip(chosen, jobs, strict=True):
                run.jobs[unit.name] = job

    def _show(self, show: Callable[[Sequence[str]], None]) -> None:
        if (now := time.monotonic()) - self._shown >= SECONDS_BETWEEN_SHOWS:
            self._shown = now
            show([line for run in self._runs for line in run.lines()])


class _Run:
    """The open units of one experiment, and their jobs."""

    def __init__(self, units: ExperimentUnits) -> None:
        self.units = units
        self.open = {unit.name: unit for unit in units_to_run(units.units)}
        self.chains = longest_chains(list(self.open.values()))
        self.jobs: dict[str, Job] = {}
        self.missing: dict[str, str] = {}
        self._session = units.session
        self._status = UnitStatus(units.session.folder)
        self._failures: Counter[str] = Counter()
        self._heard: Counter[str] = Counter()

    def collect(self) -> None:
        """Take note of the jobs that have ended."""
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
        """Return the units that a worker may start now, after running those that are too short for one."""
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
        """Return whether to start a unit, after removing the status of an earlier attempt."""
        if self._is_run_elsewhere(name):
            return False
        self._status.forget(name)
        self._heard[name] = 0
        return True

    def lines(self) -> list[str]:
        """Return a line of progress for each running unit."""
        for name in self.jobs:
            self._listen(name)
        return [f"{self._title(name)}  {self._status.progress(name)}".rstrip() for name in self.jobs]

    def stop(self) -> None:
        """End all jobs."""
        for job in self.jobs.values():
            job.stop()

    def describe_missing(self) -> str:
        """Return which units are missing and why."""
        waiting = [name for name in self.open if name not in self.missing]
        failed = "; ".join(f"{name} failed {ATTEMPTS} times: {why}" for name, why in self.missing.items())
        needing = f"; left out, as they need it: {', '.join(waiting)}" if waiting else ""
        return f"{len(self.open)} parts of {self._session.folder.path} are missing; {failed}{needing}"

    def _is_run_elsewhere(self, name: str) -> bool:
        """Return whether a job of an earlier driver runs a unit; if so, wait for it.

        Jobs of a cluster outlive their driver.
        """
        if self._status.is_running(name):
            self.jobs[name] = _Elsewhere(self._status, name)
        return name in self.jobs

    def _note_failure(self, name: str, ending: str) -> None:
        reason = self._status.failure(name)
        if reason is None:  # the worker was killed before it could record a reason
            self._status.note_failure(name, reason := ending)
        self._failures[name] += 1
        if self._failures[name] < ATTEMPTS:
            self._session.reporter.say(f"{self._title(name)}: failed, and starts again: {reason}")
        else:
            self._session.reporter.say(f"{self._title(name)}: failed {ATTEMPTS} times: {reason}")
            self.missing[name] = reason

    def _listen(self, name: str) -> None:
        """Repeat the messages of a unit."""
        lines, self._heard[name] = self._status.said(name, self._heard[name])
        for line in lines:
            self._session.reporter.say(line)

    def _title(self, name: str) -> str:
        return f"{self.units.title}, {name}" if self.units.title else name


class _Elsewhere:
    """A unit that a worker of an earlier driver runs."""

    def __init__(self, status: UnitStatus, unit: str):
        self._status = status
        self._unit = unit

    def is_over(self) -> bool:
        return not self._status.is_running(self._unit)

    def ending(self) -> str:
        return "its worker ended"

    def stop(self) -> None:
        """Do nothing: the job belongs to an earlier driver."""
