"""Where the parts of an experiment run, as a setting names it."""

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Launcher:
    """Where the parts of an experiment run.

    Attributes:
        kind: In processes of this machine, as Ray tasks or as Slurm jobs.
        processes: How many of this machine run parts at once.
        address: HOST:PORT of a Ray cluster; "" is that of the variable RAY_ADDRESS, or a new one here.
        is_local: Whether jobs run on this machine in place of a Slurm cluster, to try them out.
    """

    kind: Literal["here", "ray", "slurm"] = "here"
    processes: int = 1
    address: str = ""
    is_local: bool = False

    @property
    def is_this_process(self) -> bool:
        """Whether this process runs the parts, one after another."""
        return self.kind == "here" and self.processes == 1


def parse_launcher(text: str) -> Launcher | None:
    """Return the launcher that a setting names, or None if it names none.

    >>> parse_launcher("ray:10.0.0.1:6379")
    Launcher(kind='ray', processes=1, address='10.0.0.1:6379', is_local=False)
    """
    if found := re.fullmatch(r"here(?::([1-9]\d{0,3}))?", text):
        return Launcher("here", processes=int(found[1] or 1))
    if found := re.fullmatch(r"ray(?::([\w.-]+:\d{1,5}|\[[\da-fA-F:]+\]:\d{1,5}))?", text):
        return Launcher("ray", address=found[1] or "")
    if found := re.fullmatch(r"slurm(:local)?", text):
        return Launcher("slurm", is_local=bool(found[1]))
    return None
