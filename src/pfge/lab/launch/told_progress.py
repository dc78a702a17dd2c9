"""What a worker tells of its progress: files of a unit, which its driver shows."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pfge.lab.launch.marks import Marks
from pfge.lab.run.progress import Advance, Reporter

SECONDS_BETWEEN_NOTES = 1.0


class WorkerReporter(Reporter):
    """Write progress to the marks of the unit that a worker runs.

    Args:
        marks: Those of the run.
    """

    def __init__(self, marks: Marks):
        super().__init__(quiet=True)
        self._marks = marks
        self.unit = ""

    def say(self, text: str) -> None:
        """Leave a line for the driver to write."""
        self._marks.say(self.unit, text)

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:  # noqa: ARG002 - the unit has a name
        """Tell how far a piece of work is while the context lasts."""
        yield _advance(self._marks, self.unit, total)


def _advance(marks: Marks, unit: str, total: int) -> Advance:
    told = float("-inf")
    first: tuple[float, int] | None = None

    def advance(done: int, note: str) -> None:
        nonlocal told, first
        now = time.monotonic()
        first = first or (now, done)
        if now - told >= SECONDS_BETWEEN_NOTES:
            told = now
            marks.note_progress(unit, describe_progress(done, total, done - first[1], now - first[0], note))

    return advance


def describe_progress(done: int, total: int, recently: int, seconds: float, note: str) -> str:
    """Return how far work is, how fast, and how long it takes.

    Args:
        done: Steps done.
        total: All steps.
        recently: Steps done in the seconds.
        seconds: That they took.
        note: Such as the loss.

    >>> describe_progress(300, 900, 200, 10.0, "loss 0.1")
    '300/900, 20.0/s, 0:00:30 left, loss 0.1'
    """
    parts = [f"{done:,}/{total:,}"]
    if recently > 0 and seconds > 0:
        rate = recently / seconds
        left = round((total - done) / rate)
        parts += [f"{rate:.1f}/s", f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"]
    return ", ".join([*parts, *([" ".join(note.split())] if note else [])])
