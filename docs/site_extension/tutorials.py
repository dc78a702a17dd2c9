"""The tutorials: their order, and the time that each may take."""

import time
from pathlib import Path
from typing import Any, Literal

from sphinx.errors import ExtensionError

ORDER = (
    "own_loop.py",
    "memory.py",
    "calibrate.py",
    "phone.py",
    "regression.py",
    "averaging_hurt.py",
)
LIMIT = 60.0
"""Seconds of one thread. Each is meant to take less than half of it; busy machines may take twice as long."""
_began: dict[str, float] = {}


def in_order(name: str) -> tuple[int, str]:
    """Return a tutorial's place; a new one comes last until it is listed."""
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


def limit_time(_conf: dict[str, Any], name: str, when: Literal["before", "after"]) -> None:
    """Fail the build if a tutorial took longer than it may; called before and after each."""
    now = time.process_time()
    if when == "before":
        _began[name] = now
    elif (taken := now - _began[name]) > LIMIT:
        raise ExtensionError(
            f"a tutorial may take {LIMIT:.0f} s, and {Path(name).name} took {taken:.0f} s; make it smaller"
        )
