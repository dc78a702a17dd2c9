"""What a run folder tells about units that are not done: which run, how far, and why others failed."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pfge.lab.run.folder import RunFolder
from pfge.lab.run.locks import hold_lock, is_locked
from pfge.storage.files import StorageError, write_text

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
            new.write_text(text, encoding="utf-8")
            new.replace(file)

    def progress(self, unit: str) -> str:
        """Return how far a running unit is, in words; "" if that is not known."""
        return self._read(unit, "progress") or ""

    def say(self, unit: str, text: str) -> None:
        """Keep lines that a running unit has for the user of its driver."""
        with suppress(OSError), self._file(unit, "said").open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def said(self, unit: str, after: int) -> tuple[list[str], int]:
        """Return the lines that a unit said after a number of bytes, and how many bytes there are by now."""
        try:
            with self._file(unit, "said").open("rb") as file:
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
            with file.open(encoding="utf-8", errors="replace") as opened:
                text = opened.read(LONGEST)
        except FileNotFoundError:
            return None
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
