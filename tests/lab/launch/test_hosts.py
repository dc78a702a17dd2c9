"""Locks of runs and units between hosts, as far as one machine shows it.

Each process has a network, process numbers and a host name of its own, as in a container; the file system is
the same. A network file system between two machines is not tested.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ALONE = ["unshare", "--net", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child"]
CODE = """
import os, sys
from pathlib import Path
from pfge.lab.launch import units
from pfge.lab.launch.units import UnitStatus
from pfge.lab.run.folder import RunFolder
from pfge.storage.files import StorageError
from tests.lab.tiny import tiny

units.PATIENCE = 0.2
folder = RunFolder(Path(sys.argv[1]))
print("number", os.getpid(), flush=True)
print("running", UnitStatus(folder).is_running("seed 1: w0"), folder.is_in_use(), flush=True)
try:
    with folder.opened(tiny()):
        print("has the run", flush=True)
        with UnitStatus(folder).held("seed 1: w0"):
            print("has both", flush=True)
            sys.stdin.read()
except StorageError as error:
    print("refused:", error, flush=True)
"""


def can_be_alone() -> bool:
    if not shutil.which("unshare"):
        return False
    return subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0


def start(folder: Path) -> subprocess.Popen[str]:
    command = [*ALONE, sys.executable, "-c", CODE, str(folder)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=Path(__file__).parents[3], stdin=pipe, stdout=pipe, text=True)


def lines_of(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip() for _ in range(count)]


@pytest.mark.slow
@pytest.mark.skipif(not can_be_alone(), reason="needs namespaces of its own for a process, by unshare")
def test_locks_hold_between_processes_that_share_only_the_files(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(run) as first:
        assert lines_of(first, 4) == ["number 1", "running False False", "has the run", "has both"]
        with start(run) as second:
            # Both have the same number, so that numbers could not tell them apart.
            assert lines_of(second, 3) == [
                "number 1",
                "running True True",
                f"refused: {run} is in use by another process; wait for it, or give another --out",
            ]
        first.kill()  # and all processes of its namespace with it
    with start(run) as third:
        assert lines_of(third, 4) == ["number 1", "running False False", "has the run", "has both"]
        third.kill()
