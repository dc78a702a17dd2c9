"""Pipes in place of files, whose openers wait for ever, and limits on time and memory."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

SECONDS = 20
"""More is a hang."""


def put_pipe(path: Path) -> Path:
    """Put a pipe in place of a file, which may be missing."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


@contextmanager
def in_time(*pipes: Path, seconds: float = SECONDS) -> Iterator[None]:
    """Fail if the context takes longer; threads that wait for one of the pipes are released."""

    late = f"this must not take {seconds} s"
    alarms = []

    def fail(_: int, __: FrameType | None) -> None:
        alarms.append(late)
        for pipe in pipes:
            with suppress(OSError):
                os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
        raise AssertionError(late)

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)  # again and again, until nothing waits any more
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not alarms, late  # a reader that takes any error for a damaged file may have caught it


@contextmanager
def at_most_allocated(more: int) -> Iterator[None]:
    """Let this process have so many bytes of address space beside what it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
