"""The process from which workers are forked: it has imported everything, and started nothing."""

import json
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

import pfge
from pfge.lab.launch.processes import IS_USED, start_fork_server, worker_context
from tests.processes import ROOT, launch

pytestmark = pytest.mark.skipif(not IS_USED, reason="workers are not forked on this system")


def count_threads(process: int | str) -> int:
    return len(list(Path(f"/proc/{process}/task").iterdir()))


def tell(connection: Connection, loaded: list[str]) -> None:
    """Say what a worker finds at its start."""
    connection.send(
        {
            "loaded": [name for name in loaded if name in sys.modules],
            "ignores Ctrl-C": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
            "CUDA": torch.cuda.is_initialized(),
            "threads of its parent": count_threads(os.getppid()),
        }
    )


MODULES = ["torch._dynamo", "pfge.lab.session", "pfge.lab.launch.worker"]


def print_what_a_worker_finds() -> None:
    start_fork_server()
    mine, theirs = worker_context().Pipe()
    worker = worker_context().Process(target=tell, args=(theirs, MODULES))
    worker.start()
    assert mine.poll(100)
    print(json.dumps(mine.recv()))
    worker.join()


@pytest.mark.slow
def test_a_worker_begins_with_everything_imported_and_no_thread_was_started() -> None:
    finds = print_what_a_worker_finds
    program = f"from {finds.__module__} import {finds.__name__} as find; find()"
    several = {**os.environ, "OMP_NUM_THREADS": "4"}  # with which torch has threads once it computes
    found = json.loads(subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, env=several))
    # The main one; OpenBLAS, which numpy has, ends its own before a fork.
    assert found.pop("threads of its parent") == 1
    assert found == {"loaded": MODULES, "ignores Ctrl-C": True, "CUDA": False}


START = """
import sys
from argparse import Namespace
import pfge.cli.main
from pfge.cli.arguments import prepare_workers
from multiprocessing import forkserver
prepare_workers(Namespace(launcher="here:2"))
print(forkserver._forkserver._forkserver_pid is not None, "torch" in sys.modules)
"""


@pytest.mark.slow
def test_a_command_starts_the_server_before_it_imports_torch() -> None:
    assert launch("-c", START).split() == ["True", "False"]


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    before = dict(os.environ)
    start_fork_server()
    assert dict(os.environ) == before
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    start_fork_server()
    assert os.environ["PYTHONSAFEPATH"] == ""


DRIVER = """
import os, time
from pfge.lab.launch import processes

processes.IMPORTED[1:] = ["importing_forever"]
processes.start_fork_server()
while not os.path.exists("importing"):
    time.sleep(0.01)
print("the server imports")
"""


def test_the_server_ends_with_its_driver_while_it_still_imports(tmp_path: Path) -> None:
    (tmp_path / "importing_forever.py").write_text(
        "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(600)\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(Path(pfge.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,  # is read until every process has closed it
        timeout=100,
        check=True,
    )
    assert done.stdout == b"the server imports\n"
