"""Launchers: where the units of an experiment run. It does not import torch, as help texts list them."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class LauncherSyntax:
    """How a launcher is written in `engine.launcher`.

    Attributes:
        argument: Pattern of the text after `NAME:`; the name alone is always allowed.
        usage: Every way to write it, for help and errors.
    """

    argument: str
    usage: str


# `lab/launch/driver.py` has the workers of each.
LAUNCHERS = {
    "here": LauncherSyntax(r"[1-9]\d{0,3}", "here, here:N for N processes on this machine"),
    "ray": LauncherSyntax(r"[\w.-]+:\d{1,5}|\[[\da-fA-F:]+\]:\d{1,5}", "ray, ray:HOST:PORT"),
    "slurm": LauncherSyntax("local", "slurm, slurm:local"),
}
LAUNCHER_USAGE = ", ".join(syntax.usage for syntax in LAUNCHERS.values())


@dataclass(frozen=True)
class Launcher:
    """Where the units of an experiment run.

    Attributes:
        kind: Key in `LAUNCHERS`.
        argument: Number of processes, address of a Ray cluster, or "local"; "" for the default.
    """

    kind: str
    argument: str = ""

    @property
    def processes(self) -> int:
        """Number of processes of this machine that run units at once."""
        return int(self.argument) if self.kind == "here" and self.argument else 1

    @property
    def is_this_process(self) -> bool:
        """Whether this process runs the units, one after another."""
        return self.kind == "here" and self.processes == 1


def parse_launcher(text: str) -> Launcher | None:
    """Return the launcher that a setting names, or None if there is no such launcher.

    >>> parse_launcher("ray:10.0.0.1:6379")
    Launcher(kind='ray', argument='10.0.0.1:6379')
    """
    kind, colon, argument = text.partition(":")
    syntax = LAUNCHERS.get(kind)
    if syntax is None or (colon and not re.fullmatch(syntax.argument, argument)):
        return None
    return Launcher(kind, argument)
