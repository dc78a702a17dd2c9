"""`pfge pretrain`: what it prints, and that `pfge compare` goes on from it."""

import re
from pathlib import Path

import pytest

from pfge.cli.main import main
from pfge.lab.run.results import ComparisonRow, require_rows
from tests.lab.tiny import LENGTH, PERIOD, PRETRAINING, SETTINGS, counted_steps


def call(command: str, out: Path, *arguments: str) -> int:
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    return main([command, "--out", str(out), *settings, *arguments])


@pytest.fixture(autouse=True)
def unchanged_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what the entry point does to the process."""
    monkeypatch.setattr("warnings.showwarning", None)


def test_prints_the_file_and_the_worth_of_each_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("pretrain", tmp_path, "--seeds", "1,2", "--set", "data.validation=100") == 0
    metrics = r"accuracy +(\d+\.\d\d) %, NLL \d\.\d{4}, ECE \d+\.\d\d %"
    pattern = "".join(
        rf"seed {seed}: {re.escape(str(tmp_path))}/seed-{seed}/w0\.safetensors\n"
        rf"  test:       {metrics}\n"
        rf"  validation: {metrics}\n"
        for seed in (1, 2)
    )
    assert re.fullmatch(pattern, capsys.readouterr().out)


def test_prints_the_metrics_that_a_comparison_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("pretrain", tmp_path)
    printed = capsys.readouterr().out
    call("compare", tmp_path)
    test = require_rows(tmp_path / "results.jsonl", ComparisonRow)[0].metrics["test"]
    expected = (
        f"accuracy {100 * test['accuracy']:.2f} %, NLL {test['nll']:.4f}, ECE {100 * test['ece']:.2f} %"
    )
    assert expected in printed


def test_compare_with_the_same_arguments_goes_on_from_w0(tmp_path: Path) -> None:
    with counted_steps() as steps:
        assert call("pretrain", tmp_path) == 0
        assert steps == [PRETRAINING]
        assert call("compare", tmp_path) == 0
    assert steps == [PRETRAINING + LENGTH + LENGTH - PERIOD]


def test_the_run_folder_is_named_after_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pretrain", "--seeds", "3", "--set", "name=mine", "--set", "pretrain.epochs=0"]) == 0
    assert (tmp_path / "runs" / "mine" / "seed-3" / "w0.safetensors").exists()


def test_a_setting_that_cannot_be_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("pretrain", tmp_path, "--set", "pretrain.epochs=-1") == 2
    assert capsys.readouterr().err == (
        "pfge: error: pretrain.epochs must be at least 0 and finite, got -1.0\n"
    )


def test_more_images_than_there_are_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("pretrain", tmp_path, "--set", "data.train_images=2000") == 2
    assert capsys.readouterr().err == (
        "pfge: error: training data has 1000 images, so from 1 to 1000 can be taken, or 0 for all, got 2000\n"
    )
