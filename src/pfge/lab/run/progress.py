"""Progress and logs of long work."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from pfge.lab.config.settings import ConfigError
from pfge.lab.user_functions import import_function

KINDS = ("csv", "tensorboard", "package.module:function")


class Log(Protocol):
    """The methods that Fabric's loggers and many others have."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Log numbers of an iteration."""

    def finalize(self, status: str) -> None:
        """Write everything to disk."""


def open_log(kind: str, folder: Path, work: str) -> Log | None:
    """Return the log of a piece of work; a run that is continued gets a new version beside the old one.

    Args:
        kind: "csv", "tensorboard", "" for none, or `package.module:function`, a function of your own that is
            called with the folder and the name.
        folder: Parent of the logs' folders, one for each piece of work.
        work: Name of the piece of work, such as "seed 1: PFGE".
    """
    name = re.sub(r"[^a-z0-9]+", "-", work.lower()).strip("-")
    if not kind:
        return None
    # Fabric is imported where it is needed, because that takes seconds.
    if kind == "csv":
        from lightning_fabric.loggers.csv_logs import CSVLogger

        # Written at once, so that a killed process loses nothing.
        return cast(Log, CSVLogger(folder, name, flush_logs_every_n_steps=1))
    if kind == "tensorboard":
        from lightning_fabric.loggers.tensorboard import TensorBoardLogger

        try:
            return cast(Log, TensorBoardLogger(folder, name))
        except ModuleNotFoundError:
            raise ConfigError(
                "engine.logger = 'tensorboard' needs the package tensorboard; pip install tensorboard, or "
                "choose csv"
            ) from None
    if ":" not in kind:
        raise ConfigError(f"engine.logger must be one of {', '.join(KINDS)}, got {kind!r}")
    try:
        make_log = import_function(kind, "engine.logger")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return cast(Log, make_log(folder, name))


SECONDS_BETWEEN_LINES = 5
"""Interval of lines of progress where the output is not a terminal."""

Advance = Callable[[int, str], None]
"""Called with the number of finished steps and a note to show."""


class Reporter:
    """Show the progress of long work.

    Args:
        console: Output of the progress; standard error, which does not disturb results, if None.
        quiet: Whether to show nothing, as all ranks but 0 do.
        bars: Whether a terminal may have bars; several processes would overwrite each other's.
    """

    def __init__(self, console: Console | None = None, *, quiet: bool = False, bars: bool = True):
        self.quiet = quiet
        self._console = console or Console(stderr=True, quiet=quiet, force_terminal=None if bars else False)

    def say(self, text: str) -> None:
        """Write one line."""
        self._console.print(text, markup=False, highlight=False)

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        """Show a piece of work of that many steps while the context lasts."""
        if self._console.is_terminal:
            with self._bar() as bar:
                key = bar.add_task(name, total=total, note="")
                yield lambda done, note: bar.update(key, completed=done, note=note)
        else:
            yield self._lines(name, total)

    @contextmanager
    def live_lines(self) -> Iterator[Callable[[Sequence[str]], None]]:
        """Give a function that replaces the shown lines; without a terminal it prints lines now and then."""
        if self._console.is_terminal:
            with Live(console=self._console, auto_refresh=False, transient=True) as live:
                yield lambda lines: live.update(
                    Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True
                )
        else:
            last = time.monotonic()

            def show(lines: Sequence[str]) -> None:
                nonlocal last
                if (now := time.monotonic()) - last >= SECONDS_BETWEEN_LINES:
                    last = now
                    for line in lines:
                        self.say(line)

            yield show

    def _bar(self) -> Progress:
        columns = (
            TextColumn("{task.description:<28}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[note]}", markup=False),
        )
        return Progress(*columns, console=self._console)

    def _lines(self, name: str, total: int) -> Advance:
        started = last = time.monotonic()

        def advance(done: int, note: str) -> None:
            nonlocal last
            now = time.monotonic()
            finished = done >= total and now - started > 1  # quick work prints no line
            if finished or now - last >= SECONDS_BETWEEN_LINES:
                last = now
                self.say(f"{name}: {done}/{total} in {now - started:.0f} s{'  ' + note if note else ''}")

        return advance
