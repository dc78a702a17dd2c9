"""Run units in several processes on this machine, which are forked from a server.

The server imports the modules that workers need, once, and does nothing else. A driver is not forked itself,
because it may have used threads, as torch does. The imports start only the threads of OpenBLAS, which expects
forks. This module imports neither torch nor the lab: a driver starts the server before it imports them.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pfge.lab.launch.worker import Executor, WorkerTask

IS_USED = sys.platform.startswith("linux")
"""Whether workers are forked. Elsewhere, system libraries do not expect a fork, and each worker imports."""
IMPORTED = ["pfge.lab.launch.fork_server_start", "pfge.lab.launch.worker", "torch._dynamo"]
"""Modules that the server imports, in this order; torch's optimizers import torch._dynamo, which is slow."""
SAFE_PATH = "PYTHONSAFEPATH"


def worker_context() -> ForkServerContext | SpawnContext:
    """Return the multiprocessing context that starts workers."""
    return multiprocessing.get_context("forkserver") if IS_USED else multiprocessing.get_context("spawn")


def start_fork_server() -> None:
    """Start the server unless it runs already; it ends with this process.

    Workers wait until it has imported everything, so start it before this process imports torch.
    """
    if not IS_USED:
        return
    multiprocessing.set_forkserver_preload(IMPORTED)
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"  # keeps the current folder out of sys.path, unlike plain python -c
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


@contextmanager
def processes(count: int) -> "Iterator[Executor]":
    """Start up to a number of worker processes, which end with the context."""
    executor = _Processes(count)
    try:
        yield executor
    finally:
        executor.stop()


class _Processes:
    def __init__(self, count: int):
        self.size = count
        self._context = worker_context()
        self._started: list[_Process] = []
        start_fork_server()

    def start(self, tasks: "Sequence[WorkerTask]") -> "list[_Process | _NotStarted]":
        return [self._give(task) for task in tasks]

    def wait(self, seconds: float) -> None:
        wait([process.connection for process in self._started if process.is_busy], seconds)

    def stop(self) -> None:
        for process in self._started:
            process.stop()

    def _give(self, task: "WorkerTask") -> "_Process | _NotStarted":
        for process in self._started:
            if process.is_idle():
                process.give(task)
                return process
        mine, theirs = self._context.Pipe()
        start_method = multiprocessing.get_start_method()
        started = self._context.Process(target=_work, args=(theirs, dict(os.environ), start_method))
        try:
            started.start()
        except (EOFError, OSError) as error:
            mine.close()
            return _NotStarted(error)  # the server was killed; starting the next process starts another
        finally:
            theirs.close()  # then the pipe ends when the process does
        process = _Process(started, mine)
        self._started.append(process)
        process.give(task)
        return process


class _Process:
    """A process that runs one task after another, until one fails."""

    def __init__(self, process: BaseProcess, connection: Connection):
        self._process = process
        self.connection = connection
        self.is_busy = False
        self._takes_more = True

    def give(self, task: "WorkerTask") -> None:
        self.is_busy = True
        try:
            self.connection.send(task)
        except OSError:
            self._process.join()  # it was killed while idle

    def is_idle(self) -> bool:
        return not self.is_busy and self._takes_more and self._process.is_alive()

    def is_over(self) -> bool:
        try:
            if self.connection.poll():
                self._takes_more = self.connection.recv()
                self.is_busy = False
                return True
        except (EOFError, OSError):
            self._process.join()
        self.is_busy = self._process.is_alive()
        return not self.is_busy

    def ending(self) -> str:
        code = self._process.exitcode
        return f"its process was ended by signal {-code}" if code and code < 0 else "its process ended"

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


class _NotStarted:
    """A task for which no process could be started."""

    def __init__(self, error: Exception):
        self._error = error

    def is_over(self) -> bool:
        return True

    def ending(self) -> str:
        return f"its process could not be started: {self._error}"

    def stop(self) -> None:
        pass


def _work(connection: Connection, environment: Mapping[str, str], start_method: str) -> None:
    """Run the tasks that are received, and answer whether each succeeded."""
    from pfge.lab.launch.worker import Worker  # the server has imported it

    # Restore the start method, or DataLoader workers inherit forkserver and the user's data set is pickled.
    multiprocessing.set_start_method(start_method, force=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the driver ends this process
    os.environ.clear()
    os.environ.update(environment)  # the server may have an older one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    worker = Worker()
    succeeded = True
    while succeeded:
        try:
            task = connection.recv()
        except EOFError:
            return
        succeeded = worker.run(task)
        connection.send(succeeded)


def _end_with_parent() -> None:
    """End this process when the driver ends for any reason: nobody waits for the unit."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
