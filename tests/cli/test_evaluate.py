"""`pfge evaluate` on saved ensembles: tables, JSON, temperatures, and a line for every mistake."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pfge import Ensemble
from pfge.calibration import PoolingWeights, SharedTemperature
from pfge.cli.main import main
from pfge.lab.data import ImageSet, Normalization, Splits, load_data
from pfge.lab.evaluation.corruptions import corrupt
from pfge.lab.models import build_model
from pfge.reports.run import Run
from tests.cli.captured import Captured, refused
from tests.lab.tiny import run, tiny

METHODS = "ensemble.methods=['PFGE']"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(tiny(METHODS, "data.validation_from_test=true"), folder)
    return folder


@pytest.fixture
def ensemble(finished: Path, tmp_path: Path) -> Path:
    """A copy outside the run."""
    Ensemble.load(finished / "seed-1" / "ensembles" / "PFGE", small_conv).save(tmp_path / "mine")
    return tmp_path / "mine"


def small_conv() -> torch.nn.Module:
    return build_model("small_conv", classes=10, channels=1)


def strange_digits() -> Splits:
    """Noise that looks like no digit."""
    images = torch.randint(256, (60, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = ImageSet(images, torch.zeros(60, dtype=torch.int64), ("noise",))
    return Splits(
        train=data, validation=data.select([]), test=data, normalization=Normalization((0.5,), (0.5,))
    )


def wide_images() -> Splits:
    data = ImageSet(torch.zeros(4, 1, 8, 9, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64), ("wide",))
    return Splits(
        train=data, validation=data.select([]), test=data, normalization=Normalization((0.5,), (0.5,))
    )


def assessed(folder: Path, *arguments: str) -> dict[str, Any]:
    assert main(["evaluate", str(folder), *arguments]) == 0
    found: dict[str, Any] = json.loads((folder / "evaluation.json").read_text())
    return found


def test_w0_is_an_ensemble_of_one(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "copy")
    folder = copy / "seed-1" / "ensembles" / "w0"
    assert not folder.exists()
    found = assessed(folder, "--corruptions", "blur")
    rows = [json.loads(line) for line in (copy / "results.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["method"] == "w0"]
    assert found["test"] == pytest.approx(row["test"])
    assert (found["method"], found["members"]) == ("w0", 1)
    assert found["bytes_on_disk"] > found["bytes"]
    assert [method for _, method, _ in Run(copy).evaluations] == ["w0"]
    assessed(folder, "--calibrate", "pooled")
    assert json.loads((folder / "manifest.json").read_text())["temperature"] != 1  # as of any ensemble
    run(tiny(METHODS, "data.validation_from_test=true"), copy)  # goes on as if nothing had been added


def test_no_other_run_or_seed_has_a_w0_to_evaluate(finished: Path, capsys: Captured) -> None:
    missing = str(finished / "seed-2" / "ensembles" / "w0")
    assert "no such folder exists" in refused(capsys, ["evaluate", missing])


def test_an_ensemble_in_a_run_has_the_metrics_of_its_row(finished: Path, capsys: Captured) -> None:
    found = assessed(finished / "seed-1" / "ensembles" / "PFGE")
    rows = [json.loads(line) for line in (finished / "results.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["method"] == "PFGE"]
    assert found["test"] == pytest.approx(row["test"])
    assert (found["members"], found["images"], found["bytes"]) == (4, 399, row["bytes"])
    assert found["environment"]["torch"] == torch.__version__
    assert "accuracy" in capsys.readouterr().out


def test_an_ensemble_elsewhere_is_measured_with_a_given_config(finished: Path, ensemble: Path) -> None:
    inside = assessed(finished / "seed-1" / "ensembles" / "PFGE")
    outside = assessed(ensemble, "--config", str(finished / "config.toml"))
    assert outside["test"] == inside["test"]
    assert (
        assessed(ensemble, "--set", "data.name=digits", "--out", str(ensemble / "evaluation.json"))["images"]
        == 797
    )


def test_calibrating_saves_the_temperature_of_validation_and_applies_it(
    finished: Path, ensemble: Path, capsys: Captured
) -> None:
    config = ["--config", str(finished / "config.toml")]
    rows = [json.loads(line) for line in (finished / "results.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["method"] == "PFGE"]
    found = assessed(ensemble, *config, "--calibrate", "pooled")
    assert found["temperature"] == pytest.approx(row["calibrated"]["temperature"], rel=1e-5)
    said = f"Fitted on validation data and saved: the temperature {found['temperature']:.3f}."
    assert said in capsys.readouterr().err
    assert found["test"]["nll"] == pytest.approx(row["calibrated"]["test"]["nll"], rel=1e-5)
    assert Ensemble.load(ensemble, small_conv).temperatures.pooled == found["temperature"]
    assert assessed(ensemble, *config)["test"] == found["test"]  # it stays

    found = assessed(ensemble, *config, "--calibrate", "members")
    assert found["temperature"] == 1
    assert found["member_temperatures"] == pytest.approx(row["calibrated_members"]["temperatures"], rel=1e-5)
    assert found["test"]["nll"] == pytest.approx(row["calibrated_members"]["test"]["nll"], rel=1e-5)


@pytest.mark.filterwarnings("default:all members count the same")
def test_weights_of_members_are_saved_if_they_help(
    finished: Path, ensemble: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ["--config", str(finished / "config.toml"), "--calibrate", "weights"]
    found = assessed(ensemble, *config)  # the last member of this short run is the best
    said = Ensemble.load(ensemble, small_conv).temperatures.weights
    assert said is not None
    assert said[3] > 0.9
    assert found["member_weights"] == list(said)
    told = " ".join(capsys.readouterr().err.split())
    assert f"and the weights {', '.join(f'{weight:.3f}' for weight in said)}." in told

    monkeypatch.setattr(PoolingWeights, "help", False)
    assert "member_weights" not in assessed(ensemble, *config)
    assert "all members count the same, as weights do not help" in " ".join(capsys.readouterr().err.split())
    assert Ensemble.load(ensemble, small_conv).temperatures.weights is None


@pytest.mark.filterwarnings("default:only the mean has a temperature")
def test_a_temperature_that_members_share_is_saved_if_it_helps(
    finished: Path, ensemble: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ["--config", str(finished / "config.toml"), "--calibrate", "shared"]
    monkeypatch.setattr(SharedTemperature, "help", True)
    found = assessed(ensemble, *config)
    saved = Ensemble.load(ensemble, small_conv).temperatures
    assert saved.members is not None
    assert found["member_temperatures"] == [saved.members[0]] * len(saved.members)
    assert found["temperature"] == saved.pooled
    said = f"the temperature {saved.members[0]:.3f} of each member and {saved.pooled:.3f} of the mean."
    assert said in " ".join(capsys.readouterr().err.split())

    monkeypatch.setattr(SharedTemperature, "help", False)
    assert assessed(ensemble, *config)["member_temperatures"] is None
    assert "as one of the members does not help" in " ".join(capsys.readouterr().err.split())


def test_unknown_inputs_are_told_apart(finished: Path, capsys: Captured) -> None:
    found = assessed(
        finished / "seed-1" / "ensembles" / "PFGE", "--ood", "tests.cli.test_evaluate:strange_digits"
    )
    ood = found["ood"]["tests.cli.test_evaluate:strange_digits"]
    assert ood["images"] == 60
    assert ood.keys() == {"images", "max_probability", "entropy", "mutual_information"}
    assert ood["entropy"]["auroc"] > 0.6
    assert "AUROC" in capsys.readouterr().out


def test_corrupted_images_are_measured_at_five_strengths(finished: Path) -> None:
    folder = finished / "seed-1" / "ensembles" / "PFGE"
    found = assessed(folder, "--corruptions", "noise", "--set", "data.validation_from_test=false")
    assert [entry["strength"] for entry in found["corruptions"]["noise"]] == [1, 2, 3, 4, 5]
    splits = load_data("digits")
    assert isinstance(splits.test, ImageSet)
    images = corrupt(splits.test.images, "noise", 5, 0)
    predicted = Ensemble.load(folder, small_conv).predict(splits.normalization(images)).argmax(dim=1)
    expected = (predicted == splits.test.labels).double().mean().item()
    assert found["corruptions"]["noise"][4]["accuracy"] == pytest.approx(expected)


def test_all_corruptions_can_be_asked_for_at_once(finished: Path) -> None:
    folder = finished / "seed-1" / "ensembles" / "PFGE"
    found = assessed(folder, "--corruptions", "all", "--set", "data.test_images=50")
    assert [*found["corruptions"]] == ["noise", "blur", "brightness", "contrast", "pixelation", "jpeg"]


def test_a_compressed_ensemble_is_measured_against_the_original(finished: Path, tmp_path: Path) -> None:
    folder = finished / "seed-1" / "ensembles" / "PFGE"
    assert main(["compress", str(folder), str(tmp_path / "small"), "--delta-bits", "4"]) == 0
    config = ["--config", str(finished / "config.toml")]
    found = assessed(tmp_path / "small", *config, "--against", str(folder))
    original = assessed(folder)
    assert found["bytes"] < original["bytes"] / 3
    assert found["bytes_on_disk"] == sum(f.stat().st_size for f in (tmp_path / "small").glob("[!e]*"))
    assert found["test"]["nll_of_other"] == pytest.approx(original["test"]["nll"])
    assert 0 < found["test"]["kl_from_other"] < 0.01
    assert assessed(folder, "--against", str(folder))["test"]["kl_from_other"] == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "so its data and model are not known; give --config RUN/config.toml"),
        (
            ["--config", "CONFIG", "--corruptions", "blurr"],
            "unknown corruption 'blurr'; did you mean 'blur'?",
        ),
        (["--config", "CONFIG", "--ood", "digit"], "unknown data set 'digit'; did you mean 'digits'?"),
        (
            ["--config", "CONFIG", "--ood", "tests.cli.test_evaluate:wide_images"],
            "inputs of unknown kinds must have the shape of digits's, [1, 8, 8], got [1, 8, 9]",
        ),
        (
            ["--config", "CONFIG", "--set", "data.validation_from_test=false", "--calibrate", "pooled"],
            "calibrating needs validation data that the ensemble was not trained on",
        ),
        (["--config", "CONFIG", "--set", "model.name=resnet20"], "the same tensors"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_the_ensemble_stays(
    finished: Path, ensemble: Path, capsys: Captured, arguments: list[str], expected: str
) -> None:
    before = (ensemble / "manifest.json").read_bytes()
    given = [str(finished / "config.toml") if argument == "CONFIG" else argument for argument in arguments]
    assert expected in refused(capsys, ["evaluate", str(ensemble), *given])
    assert (ensemble / "manifest.json").read_bytes() == before
    assert not (ensemble / "evaluation.json").exists()


@pytest.mark.parametrize("out", ["missing/x.json", "."])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    finished: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.setattr("pfge.lab.evaluation.robustness.assess", None)  # cannot be called
    folder = finished / "seed-1" / "ensembles" / "PFGE"
    message = refused(capsys, ["evaluate", str(folder), "--out", out])
    assert (
        message
        == f"--out must be a file in a folder that exists, got {out}; make the folder, or give another file"
    )


def test_a_folder_that_is_no_ensemble_is_refused(finished: Path, capsys: Captured) -> None:
    assert "is not an ensemble folder" in refused(capsys, ["evaluate", str(finished / "seed-1")])
