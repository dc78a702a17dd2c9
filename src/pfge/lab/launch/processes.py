"""Run units in several processes on this machine."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from pfge.lab.launch.work import Pool
from pfge.lab.launch.worker import Order, Worker


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
        # Not forked: a process that has used threads, as torch does, cannot be forked safely.
        self._context = multiprocessing.get_context("spawn")
        self._started: list[_Process] = []

    def start(self, orders: Sequence[Order]) -> list["_Process"]:
        return [self._give(order) for order in orders]

    def stop(self) -> None:
        for process in self._started:
            process.stop()

    def _give(self, order: Order) -> "_Process":
        for process in self._started:
            if process.is_idle():
                process.give(order)
                return process
        mine, theirs = self._context.Pipe()
        started = self._context.Process(target=_work, args=(theirs,))
        started.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        process = _Process(started, mine)
        self._started.append(process)
        process.give(order)
        return process


class _Process:
    """A process that runs one unit after another, until one fails."""

    def __init__(self, process: SpawnProcess, connection: Connection):
        self._process = process
        self._connection = connection
        self._is_idle = True

    def give(self, order: Order) -> None:
        self._is_idle = False
        try:
            self._connection.send(order)
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


def _work(connection: Connection) -> None:
    """Carry out the orders that are received, and answer whether each succeeded."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver too, which ends this process
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
