"""What a run folder tells about units that are not done: which are running, and why others failed."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pfge.lab.run.folder import RunFolder
from pfge.lab.run.locks import hold_lock, is_locked
from pfge.storage.files import StorageError, write_text

PATIENCE = 20.0
"""Seconds that a worker waits for one whose driver was killed: it ends by itself."""
LONGEST = 1000
"""Characters of a reason."""


class Marks:
    """The locks of units, and the reasons of those that failed.

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

    def note_failure(self, unit: str, reason: str | Exception) -> None:
        """Keep the reason for which a unit failed."""
        self._path.mkdir(exist_ok=True)
        write_text(self._file(unit, "failed"), reason if isinstance(reason, str) else _in_one_line(reason))

    def forget_failure(self, unit: str) -> None:
        """Remove the reason: the unit is tried again."""
        self._file(unit, "failed").unlink(missing_ok=True)

    def failure(self, unit: str) -> str | None:
        """Return why a unit failed the last time that it ran, if it did."""
        try:
            with self._file(unit, "failed").open(encoding="utf-8", errors="replace") as file:
                text = file.read(LONGEST)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{self._file(unit, 'failed')} cannot be read: {error.strerror}") from None
        # The file may come from a stranger, and a terminal obeys what is not printable.
        return "".join(character if character.isprintable() else "?" for character in text)

    def remove(self) -> None:
        """Remove all marks: the run is finished."""
        shutil.rmtree(self._path, ignore_errors=True)

    def _file(self, unit: str, kind: str) -> Path:
        return self._path / f"{re.sub('[^A-Za-z0-9_-]+', '-', unit)}.{kind}"


def is_users_mistake(error: Exception) -> bool:
    """Return whether an error's message is enough for a user, without the place in the program."""
    return isinstance(error, ValueError | OSError)


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (text if text and is_users_mistake(error) else f"{type(error).__name__}: {text}")[:LONGEST]
