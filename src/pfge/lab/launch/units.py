"""Units of an experiment: the graph of what needs what, and files that tell how far each unit is."""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pfge.lab.run.folder import RunFolder, hold_lock, is_locked
from pfge.lab.session import Session
from pfge.storage.files import StorageError, UnreadableFileError, open_regular, regular_only, write_text


@dataclass(frozen=True)
class Unit:
    """A part of an experiment. Its results are files, which also show whether it is done.

    Units are sent to workers, so both functions are picklable: functions of a module, or a
    `functools.partial` of one.

    Attributes:
        name: Unique among the units of the experiment.
        is_done: Returns whether its results exist.
        run: Makes the results; continues where a killed process stopped.
        needs: Names of the units that must be done first.
        early: A file that replaces everything in `needs` as soon as it exists.
        iterations: Largest number of updates that it trains for.
        by_driver: Whether it is too short for a process of its own.
    """

    name: str
    is_done: Callable[[], bool]
    run: Callable[[Session], None]
    needs: tuple[str, ...] = ()
    early: Path | None = None
    iterations: int = 0
    by_driver: bool = False

    def may_start(self, open_units: Mapping[str, object]) -> bool:
        """Return whether nothing that it needs is among the open units."""
        waits = any(name in open_units for name in self.needs)
        return not waits or (self.early is not None and self.early.exists())


def units_to_run(units: Sequence[Unit]) -> list[Unit]:
    """Return the units that are not done and that the end of the experiment needs, in their order.

    Results that only finished units needed may have been removed since, and are not made again.
    """
    by_name = {unit.name: unit for unit in units}
    needed = {name for unit in units for name in unit.needs}
    found: set[str] = set()
    open_ends = [unit for unit in units if unit.name not in needed]
    while open_ends:
        unit = open_ends.pop()
        if unit.name not in found and not unit.is_done():
            found.add(unit.name)
            open_ends += [by_name[name] for name in unit.needs]
    return [unit for unit in units if unit.name in found]


def is_to_run(unit: Unit, dependents: Sequence[Unit]) -> bool:
    """Return whether `units_to_run` has a unit, by looking at its dependents only.

    Args:
        unit: The unit.
        dependents: All units that need it, directly or through others, as from `find_dependents`.
    """
    if unit.is_done():
        return False
    needing = [other for other in dependents if unit.name in other.needs]
    return not needing or any(is_to_run(other, dependents) for other in needing)


def find_dependents(units: Sequence[Unit], name: str) -> tuple[Unit, ...]:
    """Return the units that need a unit, directly or through others, in their order.

    Args:
        units: Each unit after those that it needs.
        name: Name of the unit.
    """
    reached = {name}
    found = []
    for unit in units:
        if reached.intersection(unit.needs):
            reached.add(unit.name)
            found.append(unit)
    return tuple(found)


def longest_chains(units: Sequence[Unit]) -> dict[str, int]:
    """Return for each unit the iterations of the longest chain that starts with it and ends the experiment.

    Args:
        units: Each unit after those that it needs.
    """
    after = dict.fromkeys((unit.name for unit in units), 0)
    chains: dict[str, int] = {}
    for unit in reversed(units):
        chains[unit.name] = unit.iterations + after[unit.name]
        for need in set(unit.needs) & after.keys():
            after[need] = max(after[need], chains[unit.name])
    return chains


PATIENCE = 20.0
"""Seconds that a worker waits for the worker of a killed driver, which ends by itself."""
LONGEST = 1000
"""Most characters of a failure's reason or of a line of progress."""
MOST_SAID = 100_000
"""Most bytes of a unit's messages that are read at once."""


class UnitStatus:
    """The lock, the progress, the messages and the last failure of each unit of a run.

    All are files, so workers on any machine write them, and a driver or `pfge status` on any other machine
    reads them.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: RunFolder):
        self._path = folder.units

    @contextmanager
    def held(self, unit: str) -> Iterator[None]:
        """Hold the lock of a unit while it runs; if it fails, record the reason.

        Raises:
            StorageError: Another process runs it.
        """
        self._path.mkdir(exist_ok=True)
        message = f"another process runs {unit} in {self._path.parent}; wait for it"
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
        """Record why a unit failed; return whether the reason could be written."""
        # On a full disk, an error here would hide the reason and end the other units.
        with suppress(OSError):
            self._path.mkdir(exist_ok=True)
            write_text(
                self._file(unit, "failed"), reason if isinstance(reason, str) else _in_one_line(reason)
            )
            return True
        return False

    def forget_failure(self, unit: str) -> None:
        """Remove the reason before a new attempt."""
        self._file(unit, "failed").unlink(missing_ok=True)

    def failure(self, unit: str) -> str | None:
        """Return why the last attempt failed; None if it did not."""
        return self._read(unit, "failed")

    def note_progress(self, unit: str, text: str) -> None:
        """Write the progress of a running unit; errors of the file system are ignored."""
        file = self._file(unit, "progress")
        new = file.with_suffix(".progress-new")
        with suppress(OSError):
            with open(new, "w", encoding="utf-8", opener=regular_only) as opened:
                opened.write(text)
            new.replace(file)

    def progress(self, unit: str) -> str:
        """Return the progress of a running unit; "" if it has written none."""
        return self._read(unit, "progress") or ""

    def say(self, unit: str, text: str) -> None:
        """Append a message of a running unit for the user of its driver."""
        with (
            suppress(OSError),
            open(self._file(unit, "said"), "a", encoding="utf-8", opener=regular_only) as file,
        ):
            file.write(text + "\n")

    def said(self, unit: str, after: int) -> tuple[list[str], int]:
        """Return the lines that a unit wrote after an offset in bytes, and the offset of the next line."""
        try:
            with open_regular(self._file(unit, "said")) as file:
                file.seek(after)
                found = file.read(MOST_SAID)
        except OSError:
            return [], after
        whole = found[: found.rfind(b"\n") + 1]
        return [_printable(line) for line in whole.decode(errors="replace").splitlines()], after + len(whole)

    def forget(self, unit: str) -> None:
        """Remove the progress, the messages and the failure of an earlier attempt."""
        for kind in ("failed", "progress", "said"):
            self._file(unit, kind).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove all files after the run is finished."""
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
    """Replace characters that control a terminal: files may come from a stranger."""
    return "".join(character if character.isprintable() else "?" for character in text)


def is_users_mistake(error: Exception) -> bool:
    """Return whether a user needs only the message of an error, without a traceback."""
    return isinstance(error, ValueError | OSError)


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (text if text and is_users_mistake(error) else f"{type(error).__name__}: {text}")[:LONGEST]


@dataclass(frozen=True)
class UnitState:
    """A unit's line in `pfge status`.

    Attributes:
        name: Name of the unit.
        state: "done" also for a unit whose results nothing needs any more.
        note: Its progress, why it failed, or what it waits for.
    """

    name: str
    state: Literal["done", "running", "waiting", "failed"]
    note: str = ""


def find_states(folder: RunFolder, units: Sequence[Unit]) -> list[UnitState]:
    """Return the state of each unit; any process may call this while others work."""
    status = UnitStatus(folder)
    to_run = {unit.name: unit for unit in units_to_run(units)}
    return [_find_state(status, unit, to_run) for unit in units]


def _find_state(status: UnitStatus, unit: Unit, to_run: Mapping[str, Unit]) -> UnitState:
    if unit.name not in to_run:
        return UnitState(unit.name, "done")
    if status.is_running(unit.name):
        return UnitState(unit.name, "running", status.progress(unit.name))
    if (reason := status.failure(unit.name)) is not None:
        return UnitState(unit.name, "failed", reason)
    needs = [] if unit.may_start(to_run) else [name for name in unit.needs if name in to_run]
    return UnitState(unit.name, "waiting", f"for {', '.join(needs)}" if needs else "")
