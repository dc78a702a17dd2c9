"""`pfge compare` and `pfge pretrain` of several configs: one display, one table and one page of all."""

from pathlib import Path

import pytest

from pfge.cli.main import main
from pfge.lab.config.toml import to_toml
from tests.lab.tiny import outcome, run, tiny

METHODS = "ensemble.methods=['SWA']"


@pytest.fixture(autouse=True)
def unchanged_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what the entry point does to the process."""
    monkeypatch.setattr("warnings.showwarning", None)


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    """Return a folder of two configs, a and b."""
    folder = tmp_path / "configs"
    folder.mkdir()
    for name, seed in (("a", 1), ("b", 2)):
        experiment = tiny(METHODS, f"name={name}", f"seeds=[{seed}]")
        (folder / f"{name}.toml").write_text(to_toml(experiment))
    return folder


def test_experiments_of_a_folder_share_workers_and_have_one_page(
    configs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(configs), "--out", str(tmp_path / "out"), "--launcher", "here:2"]) == 0
    printed = capsys.readouterr().out
    assert "all runs" in printed
    assert f"a: 2 results of 1 seeds in {tmp_path / 'out' / 'a'}" in printed
    assert f"Report: {tmp_path / 'out' / 'report.html'}" in printed
    assert "<title>" in (tmp_path / "out" / "report.html").read_text()
    run(tiny(METHODS, "name=b", "seeds=[2]"), tmp_path / "alone")
    assert outcome(tmp_path / "out" / "b") == outcome(tmp_path / "alone")
    assert main(["status", str(tmp_path / "out" / "a"), str(tmp_path / "out" / "b")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path / 'out' / 'a'}:"
    assert lines.count("5 done, 0 running, 0 waiting, 0 failed; no process works on it") == 2


def test_an_experiment_that_fails_stops_no_other(
    configs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        (configs / "a.toml")
        .read_text()
        .replace("high = 0.05", "high = 1e30")
        .replace("low = 0.0005", "low = 1e30")
    )
    (configs / "a.toml").write_text(text)
    files = [str(configs / "a.toml"), str(configs / "b.toml")]
    assert main(["compare", *files, "--out", str(tmp_path / "out")]) == 2
    found = capsys.readouterr()
    assert f"b: 2 results of 1 seeds in {tmp_path / 'out' / 'b'}" in found.out
    assert "pfge: error: a is not finished: " in found.err
    assert "holds NaN or infinity" in found.err


def test_the_size_of_each_part_of_the_data_is_printed_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "a.toml"
    config.write_text(
        to_toml(tiny(METHODS, "data.validation=25", "data.train_images=100", "data.test_images=40"))
    )
    sizes = "100 training, 25 validation and 40 test examples"
    command = ["compare", str(config), "--out", str(tmp_path / "run")]
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == sizes
    assert main(command) == 0
    assert capsys.readouterr().err.splitlines()[0] == sizes


def test_the_hours_of_all_are_told(configs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(configs), "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a:"
    assert lines.count("          26  iterations in 5 units; 0 units are done") == 2
    hours = [float(line.split()[0]) for line in lines if "hours with" in line]
    assert len(hours) == 4
    assert not (tmp_path / "out").exists()


def test_configs_that_do_not_go_together_are_refused(
    configs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["compare", str(tmp_path / "empty")]) == 2
    assert "empty does not contain .toml files" in capsys.readouterr().err
    (configs / "c.toml").write_text((configs / "a.toml").read_text())
    assert main(["compare", str(configs)]) == 2
    assert "c.toml have the same name = 'a'" in capsys.readouterr().err
    (configs / "c.toml").write_text(to_toml(tiny("name=c", "engine.launcher=here:2")))
    assert main(["compare", str(configs)]) == 2
    error = capsys.readouterr().err
    assert "must have the same engine.launcher, got here and here:2; choose one with --launcher" in error


def test_start_weights_of_several_experiments(
    configs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pretrain", str(configs), "--out", str(tmp_path / "out"), "--launcher", "here:2"]) == 0
    printed = capsys.readouterr().out
    for name, seed in (("a", 1), ("b", 2)):
        assert f"seed {seed}: {tmp_path / 'out' / name}" in printed
