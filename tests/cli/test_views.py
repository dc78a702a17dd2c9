"""`pfge views`: a copy that predicts what the row of test-time augmentation has, in every other command."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from pfge import Ensemble
from pfge.cli.main import main
from pfge.views import View
from tests.cli.captured import Captured, refused
from tests.export.exported_files import answer
from tests.lab.tiny import read_lines, run, small_conv, tiny

AUGMENTED = ("data.crop_padding=2", "data.flip=true", "data.validation_from_test=true")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose SWA has been seen in four views by its TTA."""
    folder = tmp_path_factory.mktemp("views") / "run"
    run(tiny("ensemble.methods=['SWA','TTA']", *AUGMENTED), folder)
    return folder


@pytest.fixture
def swa(finished: Path) -> Path:
    return finished / "seed-1" / "ensembles" / "SWA"


@pytest.fixture
def seen(swa: Path, tmp_path: Path) -> Path:
    """A copy in four views."""
    assert main(["views", str(swa), str(tmp_path / "seen")]) == 0
    return tmp_path / "seen"


def test_the_copy_is_the_row_of_test_time_augmentation(
    finished: Path, swa: Path, tmp_path: Path, capsys: Captured
) -> None:
    seen = tmp_path / "seen"
    assert main(["views", str(swa), str(seen)]) == 0
    rows = {row["method"]: row["calibrated"] for row in read_lines(finished / "results.jsonl")}
    shown = {}
    for name, row in rows.items():
        metrics = row["validation"]
        percent = {key: f"{100 * metrics[key]:.2f} %" for key in ("accuracy", "ece")}
        shown[name] = f"accuracy {percent['accuracy']}, NLL {metrics['nll']:.4f}, ECE {percent['ece']}"
    assert capsys.readouterr().out.splitlines() == [
        f"{seen}: 4 views of each image, temperature {rows['TTA']['temperature']:.3f}",
        "On 398 validation examples, each at its own temperature:",
        f"  images as they are: {shown['SWA']}",
        f"  in views: {shown['TTA']}",
    ]
    assert main(["evaluate", str(seen), "--config", str(finished / "config.toml")]) == 0
    found = json.loads((seen / "evaluation.json").read_text())
    assert found["test"]["nll"] == pytest.approx(rows["TTA"]["test"]["nll"], abs=1e-6)
    assert found["members"] == 1


@pytest.mark.slow
def test_other_commands_use_the_views(seen: Path, finished: Path, tmp_path: Path, capsys: Captured) -> None:
    ensemble = Ensemble.load(seen, small_conv)
    assert ensemble.views is not None
    assert ensemble.views.views == (View(), View(mirrored=True), View(-1), View(-1, 0, True))
    spec = ensemble.input_spec
    assert spec.mean
    assert spec.std
    assert ensemble.views.border == pytest.approx([-spec.mean[0] / spec.std[0]])

    torch.manual_seed(0)
    pixels = torch.randint(256, (8, 8), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(tmp_path / "digit.png")
    inputs = ((pixels / 255 - spec.mean[0]) / spec.std[0])[None, None]
    expected = ensemble.predict(inputs)
    assert not torch.allclose(expected, ensemble.in_views(None).predict(inputs))
    config = ["--config", str(finished / "config.toml")]

    capsys.readouterr()
    assert main(["predict", str(seen), str(tmp_path / "digit.png"), "--json", "--top", "1", *config]) == 0
    said = json.loads(capsys.readouterr().out)
    assert max(said["classes"].values()) == pytest.approx(float(expected.max()), abs=1e-6)

    assert main(["export", str(seen), str(tmp_path / "seen.pt2"), "--format", "torch", *config]) == 0
    assert "seen.pt2: 1 member in 4 views, " in capsys.readouterr().out
    torch.testing.assert_close(answer(tmp_path / "seen.pt2", inputs), expected)

    assert main(["compress", str(seen), str(tmp_path / "small"), "--small-bits", "16"]) == 0
    assert Ensemble.load(tmp_path / "small", small_conv).views == ensemble.views


def test_without_validation_data_there_is_no_temperature(tmp_path: Path, capsys: Captured) -> None:
    run(tiny("ensemble.methods=['SWA']", "data.flip=true"), tmp_path / "run")
    swa = tmp_path / "run" / "seed-1" / "ensembles" / "SWA"
    assert main(["views", str(swa), str(tmp_path / "seen"), "--count", "9"]) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path / 'seen'}: 2 views of each image; without validation data, no temperature was fitted\n"
    )
    assert Ensemble.load(tmp_path / "seen", small_conv).temperatures.pooled == 1


def test_a_mistake_is_refused_and_nothing_is_written(swa: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "seen"
    for arguments, message in (
        ([str(swa), str(swa)], f"OUT and ENSEMBLE must be different folders, got {swa} for both"),
        (
            [str(swa), str(out), "--count", "1"],
            "--count must be at least 2, because one view is the unchanged image",
        ),
        (
            [str(swa), str(out), "--set", "data.flip=false", "--set", "data.crop_padding=0"],
            "data.crop_padding must be above 0 or data.flip true, got 0 and false; set one",
        ),
        ([str(tmp_path), str(out)], "is not an ensemble folder: it has no manifest.json"),
    ):
        assert message in refused(capsys, ["views", *arguments])
    assert not out.exists()
