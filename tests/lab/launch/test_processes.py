"""Units in several processes on one machine: the bytes are those of one process."""

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from pfge.lab.config.settings import ConfigError
from pfge.lab.experiments.compare import compare_all
from pfge.lab.launch.driver import UnitsMissingError
from pfge.lab.launch.processes import processes, worker_context
from pfge.lab.launch.units import Unit
from pfge.lab.launch.worker import Worker, WorkerTask
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session
from pfge.storage.files import StorageError
from tests.lab.tiny import counted_steps, outcome, run, tiny
from tests.processes import PATIENCE, ROOT

METHODS = "ensemble.methods=['FGE','SWAG','PFGE','Star','DeepEnsemble']"


def methods_in(folder: Path) -> list[str]:
    return [json.loads(line)["method"] for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_two_processes_make_the_bytes_of_one(tmp_path: Path) -> None:
    chosen = (METHODS, "seeds=[2,1]", "data.validation_from_test=true")
    with counted_steps() as steps:
        rows = run(tiny(*chosen, "engine.launcher=here:2"), tmp_path / "two")
    assert steps == [0]  # none of them in this process
    assert run(tiny(*chosen), tmp_path / "one") == rows
    assert outcome(tmp_path / "two") == outcome(tmp_path / "one")
    names = [sorted(path.name for path in (tmp_path / run).iterdir()) for run in ("one", "two")]
    assert names[0] == names[1]
    seeds = [sorted(path.name for path in (tmp_path / run / "seed-1").iterdir()) for run in ("one", "two")]
    assert seeds == [["ensembles", "scores", "w0.safetensors", "w0.safetensors.sha256"]] * 2


def test_what_fails_in_workers_leaves_the_rest_and_the_results_of_it(tmp_path: Path) -> None:
    experiment = tiny(
        "ensemble.methods=['SWA','DeepEnsemble']",
        "ensemble.high=1e30",
        "ensemble.low=1e30",
        "engine.launcher=here:2",
    )
    with pytest.raises(UnitsMissingError) as caught:
        run(experiment, tmp_path)
    assert str(caught.value).startswith(
        f"3 parts of {tmp_path} are missing; seed 1: shared path failed 3 times: "
    )
    assert "holds NaN or infinity at iteration 2" in str(caught.value)
    assert "left out, as they need it: seed 1: measure SWA, seed 1: tidy" in str(caught.value)
    assert methods_in(tmp_path) == ["w0", "DeepEnsemble"]


def never() -> bool:
    return False


def die(_: Session) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_environment(session: Session) -> None:
    """Write what a worker has of its driver."""
    text = f"{os.environ['MADE_VARIABLE']}, {multiprocessing.get_start_method()}"
    (session.folder.path / "variable").write_text(text)


def fail(_: Session) -> None:
    raise ValueError("lower the rate")


def task(folder: Path, unit: Unit) -> WorkerTask:
    return WorkerTask(tiny(), folder, unit, (), threads=1, working_folder=Path.cwd())


def test_a_killed_process_is_noticed_and_the_next_has_what_its_driver_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "variable"
    with processes(1) as executor:
        (job,) = executor.start([task(tmp_path, Unit("dies", never, die))])
        while not job.is_over():
            executor.wait(60)  # ends with the process
        assert job.ending() == "its process was ended by signal 9"
        start = time.monotonic()
        executor.wait(0.5)
        assert time.monotonic() - start >= 0.4  # nothing is at work
        monkeypatch.setenv("MADE_VARIABLE", "what it is now")
        (job,) = executor.start([task(tmp_path, Unit("writes", file.exists, write_environment))])
        while not job.is_over():
            executor.wait(60)
    # Processes that read data are started as by the driver, which need not pickle a data set.
    said = file.read_text()
    assert said == f"what it is now, {multiprocessing.get_start_method()}"


def test_a_process_that_cannot_be_started_is_a_failure_of_its_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the server from which it is forked was killed."""
    started = worker_context().Process.start
    fails = iter([True, False, True])

    def start(process: Any) -> None:
        if next(fails, False):
            raise EOFError("unexpected EOF")
        started(process)

    monkeypatch.setattr(worker_context().Process, "start", start)
    run(tiny("ensemble.methods=['SWA']", "engine.launcher=here:2"), tmp_path)
    assert next(fails, None) is None
    assert methods_in(tmp_path) == ["w0", "SWA"]


def test_a_worker_without_room_for_a_reason_prints_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pfge.lab.launch.units.write_text", refuse)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # a worker sets its own
    assert not Worker().run(task(tmp_path, Unit("fails", never, fail)))
    assert capsys.readouterr().err == "pfge: warning: fails: failed: lower the rate\n"


UNGUARDED = """
from pathlib import Path
import sys
from tests.lab.tiny import run, tiny

run(tiny("ensemble.methods=[]", "engine.launcher=here:2"), Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_script_that_workers_would_run_again_is_told_so_in_a_line_of_each(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/src"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("pfge: error: ")]
    assert (
        said
        == [
            "pfge: error: a script must not run an experiment while it is imported, as each worker of "
            "engine.launcher = 'here:2' does; put the call under if __name__ == '__main__':"
        ]
        * 3
    )
    assert done.stderr.count("Traceback") == 1  # of the script itself, which does not catch the error


NO_LAUNCHERS = "there here:0 here:-1 here:two here: here:12345 ray: ray:host ray:a/b:1 slurm:here slurm:"


@pytest.mark.parametrize("launcher", NO_LAUNCHERS.split())
def test_a_launcher_that_is_none_is_refused(launcher: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.launcher must be one of here, here:N .*, ray, "):
        tiny(f"engine.launcher='{launcher}'")


@pytest.mark.parametrize("setting", ["engine.devices=2", "engine.nodes=2"])
def test_units_of_several_processes_are_refused(setting: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.launcher = 'here:2' is for units of one process each"):
        run(tiny("ensemble.methods=[]", "engine.launcher=here:2", setting), tmp_path)


def test_a_run_may_be_continued_by_another_launcher(tmp_path: Path) -> None:
    run(tiny("ensemble.methods=['SWA']", "engine.launcher=here:2"), tmp_path)
    with counted_steps() as steps:
        run(tiny("ensemble.methods=['SWA']"), tmp_path)
    assert steps == [0]


def test_a_second_driver_or_another_config_is_refused_before_anything_starts(tmp_path: Path) -> None:
    first = tiny("ensemble.methods=[]", "engine.launcher=here:2")
    folder = RunFolder(tmp_path / "run")
    with (
        folder.opened(first),
        pytest.raises(
            StorageError, match=r"run is in use by another process; wait for it, or give another --out"
        ),
    ):
        compare_all(
            [(tiny("name=other", "engine.launcher=here:2"), tmp_path / "other"), (first, folder.path)],
            Reporter(quiet=True),
        )
    changed = tiny("ensemble.methods=[]", "engine.launcher=here:2", "pretrain.rate=0.5")
    with pytest.raises(
        StorageError, match=r"was made with another config, where this one has pretrain.rate = 0.5"
    ):
        compare_all([(first, tmp_path / "one"), (changed, folder.path)], Reporter(quiet=True))
    assert not folder.has_begun()
    assert not RunFolder(tmp_path / "one").has_begun()
