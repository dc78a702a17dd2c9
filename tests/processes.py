"""Several processes on this machine, for tests of what they do together."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
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
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--master_addr=127.0.0.1"]
    return launch(*torchrun, f"--master_port={free_port()}", *arguments)


def fork_two(module: str, folder: Path) -> None:
    """Call `main` of a module with a folder in two processes, whose environment is that of torchrun's.

    They are forked from one that has imported the module, which takes most of the time.
    """
    launch("-m", "tests.processes", module, str(folder))


def free_port() -> int:
    """Return a port that no process uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _fork_two(module: str, folder: str) -> None:
    main = import_module(module).main
    from torch import multiprocessing

    os.environ |= {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RUN_ID": "none",
    }
    multiprocessing.start_processes(_work, (main, Path(folder)), nprocs=2, start_method="fork")


def _work(rank: int, main: Callable[[Path], None], folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    main(folder)


if __name__ == "__main__":
    _fork_two(*sys.argv[1:])
