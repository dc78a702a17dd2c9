"""Several processes on this machine, for tests of what they do together."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PATIENCE = 300  # seconds, for a machine that is busy with something else


def launch(*arguments: str) -> str:
    """Run Python with these arguments, require that it succeeds, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT}/src"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def launch_two(*arguments: str) -> str:
    """Run a script or `-m module` in two processes of torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--master_addr=127.0.0.1"]
    return launch(*torchrun, f"--master_port={port}", *arguments)
