"""Logs of a run: the numbers along each path, and not a bit of difference to the results."""

import csv
from pathlib import Path

import pytest

from pfge.lab.config.settings import ConfigError
from pfge.lab.run.progress import open_log
from pfge.schedules import Triangular
from tests.lab.tiny import outcome, run, tiny

FEWER = ("ensemble.methods=['FGE','PFGE']", "ensemble.low=0.001")


def rows(file: Path) -> list[dict[str, float]]:
    with file.open() as text:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(text)]


@pytest.mark.slow
def test_every_path_has_its_loss_and_rate_as_csv_and_the_results_stay_the_same(tmp_path: Path) -> None:
    run(tiny(*FEWER), tmp_path / "plain")
    run(tiny(*FEWER, "engine.logger=csv"), tmp_path / "logged")
    assert outcome(tmp_path / "logged") == outcome(tmp_path / "plain")
    logs = tmp_path / "logged" / "logs"
    assert sorted(path.name for path in logs.iterdir()) == ["seed-1-fge", "seed-1-find-w0", "seed-1-pfge"]
    logged = rows(logs / "seed-1-fge" / "version_0" / "metrics.csv")
    rate = Triangular(2, 0.001, 0.05)
    assert [(row["step"], row["rate"]) for row in logged] == [(10, rate(10)), (16, rate(16))]
    assert all(0 < row["loss"] < 10 for row in logged)
    assert not (tmp_path / "plain" / "logs").exists()


def test_a_log_is_on_disk_at_once_and_a_second_one_leaves_the_first(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        log = open_log("csv", tmp_path, "seed 1: w0, member 2")
        assert log is not None
        log.log_metrics({"loss": value}, 10)  # and killed
    found = [rows(tmp_path / "seed-1-w0-member-2" / f"version_{n}" / "metrics.csv") for n in (0, 1)]
    assert found == [[{"loss": 1.0, "step": 10}], [{"loss": 2.0, "step": 10}]]


def test_a_logger_of_the_users_own_is_called_with_the_folder_and_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_logger_of_test_run_logs.py").write_text("def log(folder, name): return folder, name\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert open_log("my_logger_of_test_run_logs:log", tmp_path, "seed 2: PFGE") == (tmp_path, "seed-2-pfge")


def test_no_logger_is_the_default(tmp_path: Path) -> None:
    assert open_log("", tmp_path, "seed 1: w0") is None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("cvs", "engine.logger must be one of csv, tensorboard, package.module:function, got 'cvs'"),
        (
            "nowhere:log",
            "engine.logger 'nowhere:log' cannot be imported: No module named 'nowhere'; write package.module:"
            "function, and run pfge in the folder that holds it or put that folder on PYTHONPATH",
        ),
    ],
)
def test_a_logger_that_does_not_exist_is_named(tmp_path: Path, kind: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_log(kind, tmp_path, "seed 1: w0")
    assert str(raised.value) == expected


def test_without_tensorboard_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise ModuleNotFoundError("Neither is available")

    monkeypatch.setattr("lightning_fabric.loggers.tensorboard.TensorBoardLogger", missing)
    with pytest.raises(ConfigError, match="pip install tensorboard, or choose csv"):
        open_log("tensorboard", tmp_path, "seed 1: w0")
