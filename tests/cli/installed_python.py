"""Programs that have sys.path as the installed command has it."""

import os
import subprocess
import sys
from pathlib import Path

import pfge


def python(program: str, *arguments: str) -> str:
    """Return what a program prints that has sys.path as the installed command `pfge` has it."""
    source = Path(pfge.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout
