"""Units as Slurm jobs: what is submitted, in which arrays, and what is said if it cannot be."""

import os
import re
import sys
import time
from pathlib import Path

import pytest

from pfge.lab.launch import slurm_jobs as module
from pfge.lab.launch.slurm_jobs import RequeuedTask, SlurmError, slurm_jobs
from pfge.lab.launch.units import Unit
from pfge.lab.launch.worker import WorkerTask
from tests.lab.tiny import run, tiny

pytest.importorskip("submitit")

SBATCH = """#!/bin/sh
cat "$1" >> {log}
echo "Submitted batch job 7"
"""
REFUSING = """#!/bin/sh
echo "sbatch: error: Memory specification can not be satisfied" >&2
exit 1
"""

TAKING_ONE_IN_TWO = """#!/bin/sh
echo submitted >> {log}
if [ $(($(wc -l < {log}) % 2)) = 0 ]; then
    echo "sbatch: error: Batch job submission failed: Socket timed out" >&2
    exit 1
fi
echo "Submitted batch job 7"
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, sbatch: str) -> None:
    """Put programs with the names of Slurm's on the path."""
    folder.mkdir()
    for name, text in (("sbatch", sbatch), ("srun", "#!/bin/sh\n"), ("sacct", "#!/bin/sh\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def task(unit: str, *settings: str) -> WorkerTask:
    made = Unit(unit, lambda: False, lambda _: None)
    return WorkerTask(tiny(*settings), Path("run"), made, (), 1, Path())


def test_units_of_the_same_needs_are_one_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    install(tmp_path / "bin", monkeypatch, SBATCH.format(log=log))
    large = ("engine.gpus=2", "engine.memory=30", "engine.cpus=4", "engine.slurm={slurm_partition='big'}")
    tasks = [task("a"), task("b", *large), task("c")]
    with slurm_jobs(tmp_path / "units", is_local=False) as executor:
        jobs = executor.start(tasks)
    assert len(jobs) == 3
    text = log.read_text()
    assert text.count("#SBATCH --array=0-1") == 1  # a and c
    assert text.count("#SBATCH --time=1440") == 2
    for line in ("gpus-per-node=2", "mem=30GB", "cpus-per-task=4", "partition=big"):
        assert text.count(f"#SBATCH --{line}\n") == 1, text
    assert "#SBATCH --requeue" in text or "signal=USR2" in text
    (files,) = (tmp_path / "units").iterdir()
    assert files.name.startswith("submitit-")


def test_a_job_that_is_preempted_is_queued_again_as_it_was() -> None:
    job = RequeuedTask(task("a"))
    assert job.checkpoint().function is job


def test_what_slurm_refuses_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "bin", monkeypatch, REFUSING)
    with pytest.raises(SlurmError, match=r"Slurm refuses the job: .*Memory specification can not be"):
        run(tiny("ensemble.methods=[]", "engine.launcher=slurm", "engine.memory=9000"), tmp_path / "run")
    assert not (tmp_path / "run" / "seed-1").exists()


def test_a_job_that_slurm_refuses_after_others_is_a_failure_of_its_unit_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm may be busy; jobs that run already are not lost by that."""
    monkeypatch.setattr(module, "SECONDS_BETWEEN_ATTEMPTS", 0.3)
    install(tmp_path / "bin", monkeypatch, TAKING_ONE_IN_TWO.format(log=tmp_path / "log"))
    with slurm_jobs(tmp_path / "units", is_local=False) as executor:
        (taken, refused) = executor.start([task("a"), task("b", "engine.cpus=2")])
        assert not refused.is_over()
        time.sleep(0.3)
        assert refused.is_over()
        assert re.match(r"Slurm refuses the job: .*Socket timed out.*; check engine\.cpus", refused.ending())
        refused.stop()
        (again,) = executor.start([task("b", "engine.cpus=2")])
    assert type(again) is type(taken) is not type(refused)


def test_parameters_that_submitit_does_not_know_are_told(tmp_path: Path) -> None:
    wrong = task("a", "engine.slurm={slurm_queue='big'}")
    with (
        slurm_jobs(tmp_path / "units", is_local=True) as executor,
        pytest.raises(SlurmError, match="Slurm refuses the job: Unknown argument 'queue'"),
    ):
        executor.start([wrong])


def test_without_slurm_or_submitit_a_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny("ensemble.methods=[]", "engine.launcher=slurm")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="are you indeed on a slurm cluster"):
        run(experiment, tmp_path / "run")
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(SlurmError, match=r'needs submitit; pip install "pfge\[slurm\]"'):
        run(experiment, tmp_path / "run")
