"""The process from which workers on this machine are forked: it imports what they need, once.

A driver is not forked itself, because it may have used threads, as torch does. The server only imports. The
only threads that this starts are those of OpenBLAS, which expects forks.
"""

import multiprocessing
import os
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext

IS_USED = sys.platform.startswith("linux")
"""Elsewhere, libraries of the system do not expect a fork, so each worker imports for itself."""
IMPORTED = ["pfge.lab.launch.fork_server_start", "pfge.lab.launch.worker", "torch._dynamo"]
"""In this order; torch's optimizers import torch._dynamo, which takes as long as torch itself."""
SAFE_PATH = "PYTHONSAFEPATH"


def worker_context() -> ForkServerContext | SpawnContext:
    """Return what starts workers."""
    return multiprocessing.get_context("forkserver") if IS_USED else multiprocessing.get_context("spawn")


def start_fork_server() -> None:
    """Start the server unless it runs already; it ends with this process.

    Workers wait until it has imported everything, so it is best started before this process imports torch.
    """
    if not IS_USED:
        return
    multiprocessing.set_forkserver_preload(IMPORTED)
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"  # else the current folder would be searched first, as by all of python -c
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before
