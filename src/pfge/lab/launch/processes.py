"""Run units in several processes on this machine."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from pfge.lab.launch.fork_server import start_fork_server, worker_context
from pfge.lab.launch.worker import Order, Pool, Worker


@contextmanager
def processes(count: int) -> Iterator[Pool]:
    """Give a number of processes, which end with the context."""
    pool = _Processes(count)
    try:
        yield pool
    finally:
        pool.stop()


class _Processes:
    def __init__(self, count: int):
        self.size = count
        self._context = worker_context()
        self._started: list[_Process] = []
        start_fork_server()

    def start(self, orders: Sequence[Order]) -> "list[_Process | _NotStarted]":
        return [self._give(order) for order in orders]

    def wait(self, seconds: float) -> None:
        wait([process.connection for process in self._started if process.is_busy], seconds)

    def stop(self) -> None:
        for process in self._started:
            process.stop()

    def _give(self, order: Order) -> "_Process | _NotStarted":
        for process in self._started:
            if process.is_idle():
                process.give(order)
                return process
        mine, theirs = self._context.Pipe()
        how = multiprocessing.get_start_method()
        started = self._context.Process(target=_work, args=(theirs, dict(os.environ), how))
        try:
            started.start()
        except (EOFError, OSError) as error:
            mine.close()
            return _NotStarted(error)  # the server was killed; the next process starts another
        finally:
            theirs.close()  # so that the end of the process is the end of the pipe
        process = _Process(started, mine)
        self._started.append(process)
        process.give(order)
        return process


class _Process:
    """A process that runs one unit after another, until one fails."""

    def __init__(self, process: BaseProcess, connection: Connection):
        self._process = process
        self.connection = connection
        self.is_busy = False
        self._takes_more = True

    def give(self, order: Order) -> None:
        self.is_busy = True
        try:
            self.connection.send(order)
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
    """An order for which no process could be started."""

    def __init__(self, error: Exception):
        self._error = error

    def is_over(self) -> bool:
        return True

    def ending(self) -> str:
        return f"its process could not be started: {self._error}"

    def stop(self) -> None:
        pass


def _work(connection: Connection, environment: Mapping[str, str], start_method: str) -> None:
    """Carry out the orders that are received, and answer whether each succeeded."""
    # How this process was started would else be how it starts processes that read data, and a data set of a
    # user's own would have to be pickled.
    multiprocessing.set_start_method(start_method, force=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver too, which ends this process
    os.environ.clear()
    os.environ.update(environment)  # that of the server may be older
    threading.Thread(target=_end_with_parent, daemon=True).start()
    worker = Worker()
    succeeded = True
    while succeeded:
        try:
            order = connection.recv()
        except EOFError:
            return
        succeeded = worker.carry_out(order)
        connection.send(succeeded)


def _end_with_parent() -> None:
    """End this process when the driver has ended, however it did: nobody waits for the unit."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
