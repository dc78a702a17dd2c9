"""Programs that do not survive strikes, each in its own way: what strikes them must notice."""

import os
from pathlib import Path

from tests.faults.programs import Program


def get_stuck(folder: Path) -> int:
    """Write two files, and refuse to go on from one of them."""
    folder.mkdir(exist_ok=True)
    if (folder / "first").exists() and not (folder / "second").exists():
        return 2
    (folder / "first").write_text("1")
    (folder / "second").write_text("2")
    return 0


def differ(folder: Path) -> int:
    """Write a file in place, and take it for whole when it is there."""
    folder.mkdir(exist_ok=True)
    if not (folder / "file").exists():
        (folder / "file").write_text("a text")
    return 0


def leave_files(folder: Path) -> int:
    """Write under a temporary name that no later process knows."""
    folder.mkdir(exist_ok=True)
    draft = folder / f"draft-{os.getpid()}"
    draft.write_text("a text")
    draft.replace(folder / "file")
    return 0


FAULTY = {
    "gets stuck": Program(get_stuck),
    "differs": Program(differ),
    "leaves files": Program(leave_files),
}
