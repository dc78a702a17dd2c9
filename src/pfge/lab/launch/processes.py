"""Run units in several processes on this machine."""

import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from pfge.lab.config.schema import Experiment
from pfge.lab.engine import Engine
from pfge.lab.launch.driver import drive
from pfge.lab.launch.marks import Marks, is_users_mistake
from pfge.lab.launch.unit import Unit
from pfge.lab.launch.worker import MakeUnits, run_unit
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session


def run_in_processes(session: Session, units: Sequence[Unit], make_units: MakeUnits, workers: int) -> None:
    """Run what is not done in a number of processes, each of which has its share of the threads."""
    # Not forked: a process that has used threads, as torch does, cannot be forked safely.
    context = multiprocessing.get_context("spawn")
    threads = max(torch.get_num_threads() // workers, 1)
    started: list[_Worker] = []

    def start(unit: Unit) -> _Worker:
        for worker in started:
            if worker.is_idle():
                worker.give(unit)
                return worker
        mine, theirs = context.Pipe()
        folder, quiet = session.folder.path, session.reporter.quiet
        process = context.Process(
            target=_work, args=(theirs, session.experiment, folder, make_units, threads, quiet)
        )
        process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        worker = _Worker(process, mine)
        started.append(worker)
        worker.give(unit)
        return worker

    try:
        drive(session, units, start, workers)
    finally:
        for worker in started:
            worker.stop()


class _Worker:
    """A process that runs one unit after another, until one fails."""

    def __init__(self, process: SpawnProcess, connection: Connection):
        self._process = process
        self._connection = connection
        self._is_idle = True

    def give(self, unit: Unit) -> None:
        self._is_idle = False
        try:
            self._connection.send(unit.name)
        except OSError:
            self._process.join()  # it was killed while idle

    def is_idle(self) -> bool:
        return self._is_idle and self._process.is_alive()

    def is_over(self) -> bool:
        try:
            if self._connection.poll():
                self._is_idle = bool(self._connection.recv())
                return True
        except (EOFError, OSError):
            self._process.join()
        return not self._process.is_alive()

    def ending(self) -> str:
        code = self._process.exitcode
        return f"its process was ended by signal {-code}" if code and code < 0 else "its process ended"

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()


def _work(
    connection: Connection,
    experiment: Experiment,
    path: Path,
    make_units: MakeUnits,
    threads: int,
    quiet: bool,
) -> None:
    """Run the units whose names are received, and answer whether each was done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver too, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    reporter = Reporter(quiet=quiet, bars=False)
    warnings.showwarning = lambda message, *_, **__: reporter.say(f"pfge: warning: {message}")
    session: Session | None = None
    while True:
        try:
            name = connection.recv()
        except EOFError:
            return
        try:
            if session is None:
                session = Session.set_up(experiment, RunFolder(path), Engine(experiment.engine), reporter)
            run_unit(session, make_units, name)
        except Exception as error:
            Marks(RunFolder(path)).note_failure(name, error)
            if not is_users_mistake(error):
                traceback.print_exc()
            connection.send(False)
            return
        connection.send(True)


def _end_with_parent() -> None:
    """End this process when the driver has ended, however it did: nobody waits for the unit."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
