"""The progress that a worker writes."""

from pathlib import Path

import pytest

from pfge.lab.launch import worker as module
from pfge.lab.launch.units import UnitStatus
from pfge.lab.launch.worker import WorkerReporter, describe_progress
from pfge.lab.run.folder import RunFolder


def test_progress_has_a_rate_and_the_time_left() -> None:
    assert describe_progress(1500, 7800, 1000, 50.0, "loss 0.5  rate 0.01") == (
        "1,500/7,800, 20.0/s, 0:05:15 left, loss 0.5 rate 0.01"
    )
    assert describe_progress(10, 20, 0, 0.0, "") == "10/20"


def test_a_worker_tells_of_the_unit_that_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    status = UnitStatus(RunFolder(tmp_path))
    reporter = WorkerReporter(status)
    reporter.unit = "seed 1: w0"
    with status.held("seed 1: w0"), reporter.task("anything", 100) as advance:
        advance(10, "loss 2")
        now[0] = 0.5
        advance(15, "too soon to be told")
        assert status.progress("seed 1: w0") == "10/100, loss 2"
        now[0] = 2.0
        advance(30, "loss 1")
        assert status.progress("seed 1: w0") == "30/100, 10.0/s, 0:00:07 left, loss 1"
