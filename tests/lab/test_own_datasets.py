"""Comparisons on a user's own Dataset, whose items draw at random and have dicts for inputs."""

import json
from pathlib import Path
from shutil import copytree

import pytest
import torch

from pfge.cli.main import main
from pfge.lab.config.settings import ConfigError, Experiment
from tests.lab.tiny import Stopped, counted_steps, outcome, run, tiny

DATA = "data.name=tests.lab.data.datasets.made:load"
MODEL = "model.name=tests.lab.data.datasets.made:Net"


def own(*overrides: str) -> Experiment:
    return tiny(DATA, MODEL, "data.batch_size=12", "engine.checkpoint_seconds=0", *overrides)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "whole"
    run(own(), folder)
    return folder


@pytest.mark.slow
def test_a_comparison_measures_every_method_and_fits_temperatures(whole: Path) -> None:
    rows = [json.loads(line) for line in (whole / "results.jsonl").read_text().splitlines()]
    assert {row["method"] for row in rows} == {"w0", "SWA", "FGE", "FGE*", "SWAG", "SWAG*", "PFGE"}
    assert all(row["calibrated"]["temperature"] > 0 for row in rows)


@pytest.mark.slow
def test_two_workers_give_the_bytes_of_none(whole: Path, tmp_path: Path) -> None:
    run(own("data.workers=2"), tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole)


@pytest.mark.slow
def test_a_run_that_stopped_anywhere_ends_with_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    for number, stop in enumerate((3, 12)):  # steps of w0, of the shared path, of PFGE's own
        with counted_steps(stop), pytest.raises(Stopped):
            run(own(f"data.workers={2 * number}"), tmp_path / "run")
    run(own(), tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole)


def test_the_commands_take_such_a_run(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder = copytree(whole, tmp_path / "run")  # as a temperature is saved
    ensemble = str(run_folder / "seed-1" / "ensembles" / "PFGE")
    settings = ["--set", DATA, "--set", MODEL]
    assert main(["evaluate", ensemble, *settings, "--calibrate", "pooled"]) == 0
    assert main(["diagnose", str(run_folder), *settings]) == 0
    capsys.readouterr()
    for arguments, message in (
        (["evaluate", ensemble, "--corruptions", "noise"], "corrupting inputs needs pictures"),
        (
            ["predict", ensemble, "picture.png"],
            "pfge predict reads images and arrays, but inputs of this data are dict",
        ),
    ):
        assert main([*arguments, *settings]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_of_several_inputs_is_exported_by_their_names(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ensemble = str(whole / "seed-1" / "ensembles" / "PFGE")
    out = tmp_path / "model.pt2"
    assert main(["export", ensemble, str(out), "--format", "torch", "--set", DATA, "--set", MODEL]) == 0
    assert "inputs values [N, 4], number [N]" in capsys.readouterr().out
    found = torch.export.load(out).module()(values=torch.zeros(3, 4), number=torch.ones(3))
    assert found.shape[0] == 3


def test_a_model_that_does_not_take_the_inputs_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"must take the inputs of .* which are values \[4\], number \[\]: "
    ):
        run(own("model.name=small_conv"), tmp_path / "run")
