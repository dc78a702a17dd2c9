"""Status and progress of units, as files of the run."""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pfge.lab.run.folder import RunFolder, hold_lock, is_locked
from pfge.lab.run.progress import Advance, Reporter
from pfge.storage.files import StorageError, UnreadableFileError, open_regular, regular_only, write_text

PATIENCE = 20.0
"""Seconds that a worker waits for one whose driver was killed: it ends by itself."""
LONGEST = 1000
"""Characters of a reason, or of what tells how far a unit is."""
MOST_SAID = 100_000
"""Bytes that are read at once of what units say."""


class Marks:
    """The locks of units, what those that run tell, and the reasons of those that failed.

    They are files, so that workers on any machine write them, and a driver or `pfge status` on any other
    reads them.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: RunFolder):
        self._path = folder.units

    @contextmanager
    def held(self, unit: str) -> Iterator[None]:
        """Hold the lock of a unit while it runs; a reason is kept if it fails.

        Raises:
            StorageError: Another process runs it.
        """
        self._path.mkdir(exist_ok=True)
        message = f"{unit} is run by another process in {self._path.parent}; wait for it"
        with hold_lock(self._file(unit, "lock"), message, patience=PATIENCE):
            self.forget_failure(unit)
            try:
                yield
            except Exception as error:
                self.note_failure(unit, error)
                raise

    def is_running(self, unit: str) -> bool:
        """Return whether a process runs a unit now."""
        return is_locked(self._file(unit, "lock"))

    def note_failure(self, unit: str, reason: str | Exception) -> bool:
        """Keep the reason for which a unit failed; return whether it could be kept."""
        # Where it could not, as on a full disk, an error would hide the reason and end what goes on.
        with suppress(OSError):
            self._path.mkdir(exist_ok=True)
            write_text(
                self._file(unit, "failed"), reason if isinstance(reason, str) else _in_one_line(reason)
            )
            return True
        return False

    def forget_failure(self, unit: str) -> None:
        """Remove the reason: the unit is tried again."""
        self._file(unit, "failed").unlink(missing_ok=True)

    def failure(self, unit: str) -> str | None:
        """Return why a unit failed the last time that it ran, if it did."""
        return self._read(unit, "failed")

    def note_progress(self, unit: str, text: str) -> None:
        """Keep how far a running unit is, in words; it may be lost."""
        file = self._file(unit, "progress")
        new = file.with_suffix(".progress-new")
        with suppress(OSError):
            with open(new, "w", encoding="utf-8", opener=regular_only) as opened:
                opened.write(text)
            new.replace(file)

    def progress(self, unit: str) -> str:
        """Return how far a running unit is, in words; "" if that is not known."""
        return self._read(unit, "progress") or ""

    def say(self, unit: str, text: str) -> None:
        """Keep lines that a running unit has for the user of its driver."""
        with (
            suppress(OSError),
            open(self._file(unit, "said"), "a", encoding="utf-8", opener=regular_only) as file,
        ):
            file.write(text + "\n")

    def said(self, unit: str, after: int) -> tuple[list[str], int]:
        """Return the lines that a unit said after a number of bytes, and how many bytes there are by now."""
        try:
            with open_regular(self._file(unit, "said")) as file:
                file.seek(after)
                found = file.read(MOST_SAID)
        except OSError:
            return [], after
        whole = found[: found.rfind(b"\n") + 1]
        return [_printable(line) for line in whole.decode(errors="replace").splitlines()], after + len(whole)

    def forget(self, unit: str) -> None:
        """Remove what an earlier attempt at a unit left."""
        for kind in ("failed", "progress", "said"):
            self._file(unit, kind).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove all marks: the run is finished."""
        shutil.rmtree(self._path, ignore_errors=True)

    def _read(self, unit: str, kind: str) -> str | None:
        file = self._file(unit, kind)
        try:
            with open_regular(file) as opened:
                text = opened.read(4 * LONGEST).decode(errors="replace")[:LONGEST]
        except FileNotFoundError:
            return None
        except UnreadableFileError as error:
            raise StorageError(f"{error}; remove it") from None
        except OSError as error:
            raise StorageError(f"{file} cannot be read: {error.strerror}") from None
        return _printable(text)

    def _file(self, unit: str, kind: str) -> Path:
        return self._path / f"{re.sub('[^A-Za-z0-9_-]+', '-', unit)}.{kind}"


def _printable(text: str) -> str:
    """Return a text without what a terminal would obey: files may come from a stranger."""
    return "".join(character if character.isprintable() else "?" for character in text)


def is_users_mistake(error: Exception) -> bool:
    """Return whether an error's message is enough for a user, without the place in the program."""
    return isinstance(error, ValueError | OSError)


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (text if text and is_users_mistake(error) else f"{type(error).__name__}: {text}")[:LONGEST]


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
