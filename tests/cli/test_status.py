"""`pfge status` and `pfge compare --dry-run`: what is done, and what is left to do."""

from pathlib import Path

import pytest

from pfge.cli.main import main
from pfge.lab.run.folder import curve_checkpoint
from tests.lab.tiny import SETTINGS, Stopped, counted_steps, run, tiny

METHODS = "ensemble.methods=['SWA']"


def test_the_parts_of_a_run_and_how_far_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Stopped), counted_steps(stop_after=12):
        run(tiny(METHODS), tmp_path)
    assert main(["status", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "done     seed 1: w0",
        "done     seed 1: measure w0",
        "failed   seed 1: shared path: Stopped: ",
        "waiting  seed 1: measure SWA: for seed 1: shared path",
        "waiting  seed 1: tidy: for seed 1: measure SWA",
        "2 done, 0 running, 2 waiting, 1 failed; no process works on it",
    ]
    run(tiny(METHODS), tmp_path)
    assert main(["status", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "5 done, 0 running, 0 waiting, 0 failed; no process works on it"


def test_a_curve_that_is_not_finished_leaves_the_comparison_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tiny(METHODS), tmp_path)
    (tmp_path / "seed-1" / curve_checkpoint("PFGE", 1)).touch()
    assert main(["status", str(tmp_path)]) == 0
    assert "5 done, 0 running, 0 waiting, 0 failed" in capsys.readouterr().out


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path)]) == 2
    message = f"{tmp_path} is not a run folder; make one by pfge compare --out {tmp_path}"
    assert capsys.readouterr().err == f"pfge: error: {message}\n"
    run(tiny("ensemble.methods=[]"), tmp_path / "run")
    (tmp_path / "run" / "data.json").unlink()
    assert main(["status", str(tmp_path / "run")]) == 2
    assert "has no fingerprint of its data, which pfge compare writes" in capsys.readouterr().err


def test_a_dry_run_prints_parts_and_hours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = [part for setting in (*SETTINGS, METHODS) for part in ("--set", setting)]
    assert main(["compare", "--dry-run", "--out", str(tmp_path / "run"), *overrides]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1,000 training, 0 validation and 797 test examples"
    assert lines[1:7] == [
        "          10  seed 1: w0",
        "           0  seed 1: measure w0",
        "          16  seed 1: shared path",
        "           0  seed 1: measure SWA",
        "           0  seed 1: tidy",
        "          26  iterations in 5 units; 0 units are done",
    ]
    assert [line.split()[1:] for line in lines[9:11]] == [
        ["hours", "with", "one", "process"],
        ["hours", "with", "2", "workers,", "such", "as", "--launcher", "here:2"],
    ]
    assert not (tmp_path / "run").exists()
