"""Ray workers, Slurm jobs and their drivers are killed: the same command ends with the same bytes.

KILL_ROUNDS sets at how many stages a worker, and then its driver, are killed; one if it is not set.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.killable_runs import MODEL, PATIENCE, SETTINGS, SHORTER, finish, fork, processes_below, start
from tests.lab.tiny import outcome
from tests.made_once import made_once

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("KILL_ROUNDS", "1"))
METHODS = "['PFGE']" if ROUNDS == 1 else "['FGE','PFGE']"  # one stage needs no path that methods share
SHORT = (*SETTINGS, *SHORTER, f"ensemble.methods={METHODS}")
STAGES = ("pretrain.checkpoint", "shared.checkpoint", "pfge-fork.checkpoint", "ensembles", "pfge.checkpoint")
"""Files of a seed; soon after each of them appears, a worker is killed."""
WORKING = {"ray": "ray::seed", "slurm:local": "submitit.core._submit"}
"""What the command lines of processes that run units have."""


def find_workers(driver: subprocess.Popen[str], launcher: str) -> list[int]:
    """Return the processes that run units for a driver."""
    return [pid for pid, (_, line) in processes_below(driver.pid).items() if WORKING[launcher] in line]


def wait_for(driver: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while driver.poll() is None and not reached() and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run by one process that was never killed."""

    def make(folder: Path) -> None:
        (folder / "dropping.py").write_text(MODEL)
        finish(fork(folder, folder / "run", SHORT))

    return made_once(tmp_path_factory, "never-killed", make) / "run"


@pytest.mark.parametrize("launcher", WORKING)
def test_workers_and_drivers_may_be_killed(launcher: str, whole: Path, tmp_path: Path) -> None:
    pytest.importorskip(launcher.partition(":")[0].replace("slurm", "submitit"))
    (tmp_path / "dropping.py").write_text(MODEL)
    out, chosen = tmp_path / "run", random.Random(11)
    settings = (*SHORT, f"engine.launcher={launcher}")
    killed: list[str] = []
    for stage in STAGES[:: -(-len(STAGES) // ROUNDS)]:
        driver = start(tmp_path, out, settings)
        wait_for(driver, (out / "seed-1" / stage).exists)
        time.sleep(chosen.uniform(0, 0.5))
        wait_for(driver, lambda driver=driver: bool(find_workers(driver, launcher)))  # type: ignore[misc]
        for pid in find_workers(driver, launcher)[:1]:
            with suppress(ProcessLookupError):  # it may be done by now
                os.kill(pid, signal.SIGKILL)
                killed.append("worker")
        time.sleep(chosen.uniform(0, 4))
        if driver.poll() is None:
            killed.append("driver")
        driver.kill()
        driver.communicate()
    finish(start(tmp_path, out, settings))
    print(f"{launcher}: killed {killed.count('worker')} workers and {killed.count('driver')} drivers")
    assert killed
    assert outcome(out) == outcome(whole)
    assert not (out / "units").exists()


def test_a_preempted_job_is_queued_again_and_the_bytes_are_those_of_one_process(
    whole: Path, tmp_path: Path
) -> None:
    """Before Slurm ends a job, it sends a signal; the job is queued again, and no failure is counted."""
    pytest.importorskip("submitit")
    (tmp_path / "dropping.py").write_text(MODEL)
    out = tmp_path / "run"
    driver = start(tmp_path, out, (*SHORT, "engine.launcher=slurm:local"))
    wait_for(driver, (out / "seed-1" / "pretrain.checkpoint").exists)
    (job,) = find_workers(driver, "slurm:local")
    os.kill(job, signal.SIGUSR2)
    _, errors = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 0, errors
    assert "seed 1: find w0: continues from iteration" in errors
    assert "failed" not in errors
    assert outcome(out) == outcome(whole)
    names = [sorted(path.name for path in folder.iterdir()) for folder in (out, whole)]
    assert names[0] == names[1]
    assert json.loads((out / "environment.json").read_text())["threads"] == 1
