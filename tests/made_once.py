"""Folders that take long to make, and that tests of several workers only read."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that the first worker of the suite to ask for it makes, while others wait for it.

    Args:
        factory: Of temporary folders.
        name: Of the folder; no other may have it.
        make: Fills the folder, which is empty.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # that of all workers
    folder, whole = base / name, base / f"{name}.whole"
    with FileLock(base / f"{name}.lock"):
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)  # what a worker that failed has left
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder
