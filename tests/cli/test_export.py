"""`pfge export` and `pfge predict` on the ensemble of a small run."""

import json
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

from pfge import Cascade, Ensemble
from pfge.cli.main import main
from pfge.lab.data import ImageSet, load_data
from pfge.lab.models import build_model
from tests.cli.captured import Captured, refused, squeezed
from tests.lab.tiny import run, tiny


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(tiny("ensemble.methods=['PFGE']"), folder)
    return folder / "seed-1" / "ensembles" / "PFGE"


@pytest.fixture
def digits(tmp_path: Path) -> list[Path]:
    """Three test images as files: gray, in color, and twice as large."""
    images = load_data("digits").test
    assert isinstance(images, ImageSet)
    files = [tmp_path / f"{number}.png" for number in range(3)]
    pictures = [Image.fromarray(images.images[number, 0].numpy()) for number in range(3)]
    pictures[0].save(files[0])
    pictures[1].convert("RGB").save(files[1])
    pictures[2].resize((16, 16), Image.Resampling.NEAREST).save(files[2])
    return files


def small_conv() -> torch.nn.Module:
    return build_model("small_conv", classes=10, channels=1)


def expected(ensemble: Path, count: int) -> torch.Tensor:
    splits = load_data("digits")
    assert isinstance(splits.test, ImageSet)
    return Ensemble.load(ensemble, small_conv).predict(splits.normalization(splits.test.images[:count]))


def predicted(captured: Captured) -> list[dict[str, float]]:
    return [json.loads(line)["classes"] for line in captured.readouterr().out.splitlines()]


@pytest.mark.slow
def test_an_ensemble_of_a_run_becomes_an_onnx_file(ensemble: Path, capsys: Captured) -> None:
    assert main(["export", str(ensemble), "digits.onnx"]) == 0
    told, said = capsys.readouterr()
    assert squeezed(said).startswith(squeezed(f"{ensemble}: exporting 4 members, then comparing the file"))
    assert (
        f"digits.onnx: 4 members, {Path('digits.onnx').stat().st_size:,} bytes, weights as they are" in told
    )
    assert "inputs [N, 1, 8, 8]" in told
    splits = load_data("digits")
    assert isinstance(splits.test, ImageSet)
    inputs = splits.normalization(splits.test.images[:9])
    (found,) = onnxruntime.InferenceSession("digits.onnx").run(None, {"inputs": inputs.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected(ensemble, 9), rtol=0, atol=1e-5)
    (names,) = [entry.value for entry in onnx.load("digits.onnx").metadata_props if entry.key == "classes"]
    assert json.loads(names) == [str(digit) for digit in range(10)]


def sorting_by_bessel(classes: int, channels: int) -> torch.nn.Module:
    """A model that ONNX cannot express, with the weights of small_conv."""
    model = build_model("small_conv", classes=classes, channels=channels)
    model.register_forward_hook(lambda _, __, logits: torch.special.bessel_j0(logits))
    return model


@pytest.mark.slow
def test_a_model_that_onnx_cannot_express_is_one_line(ensemble: Path, capsys: Captured) -> None:
    model = ["--set", "model.name=tests.cli.test_export:sorting_by_bessel"]
    told = refused(capsys, ["export", str(ensemble), "digits.onnx", *model])
    assert "the model cannot be written as ONNX: it has no operator for" in told
    assert "bessel_j0" in told
    assert not list(Path.cwd().iterdir())


def test_pictures_are_answered_as_the_test_images_they_are(
    ensemble: Path, digits: list[Path], capsys: Captured
) -> None:
    assert main(["predict", str(ensemble), "--json", "--top", "10", *map(str, digits[:2])]) == 0
    for found, probabilities in zip(predicted(capsys), expected(ensemble, 2), strict=True):
        assert [found[str(digit)] for digit in range(10)] == pytest.approx(probabilities.tolist(), abs=1e-5)
        assert list(found.values()) == sorted(found.values(), reverse=True)


def test_a_larger_picture_is_made_as_large_as_the_data(
    ensemble: Path, digits: list[Path], capsys: Captured
) -> None:
    assert main(["predict", str(ensemble), "--json", "--top", "10", str(digits[2])]) == 0
    # Halving a picture of doubled pixels by a triangle filter of width 2 blurs it a little.
    (found,) = predicted(capsys)
    assert max(found, key=lambda name: found[name]) == str(int(expected(ensemble, 3)[2].argmax()))


def test_the_most_probable_classes_are_printed_for_people(
    ensemble: Path, digits: list[Path], capsys: Captured
) -> None:
    assert main(["predict", str(ensemble), str(digits[0])]) == 0
    best = expected(ensemble, 1)[0].topk(3)
    shares = [
        f"{c} {100 * p:.1f} %" for p, c in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
    assert capsys.readouterr().out == f"{digits[0]}: {', '.join(shares)}\n"


def test_what_is_no_picture_is_named_and_the_others_are_answered(
    ensemble: Path, digits: list[Path], tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    arguments = [str(tmp_path / "notes.txt"), str(digits[0]), str(tmp_path / "missing.png")]
    assert main(["predict", str(ensemble), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{digits[0]}: ")
    assert len(printed.out.splitlines()) == 1
    assert f"pfge: error: {tmp_path / 'notes.txt'} cannot be read as a picture" in printed.err
    assert f"pfge: error: {tmp_path / 'missing.png'} is missing; check the path" in printed.err


def test_a_cascade_asks_the_members_that_it_needs(
    ensemble: Path, digits: list[Path], tmp_path: Path, capsys: Captured
) -> None:
    Cascade((2, 0, 1, 3), threshold=1e-6).save(tmp_path / "cascade.json")  # always sure: member 2 alone
    arguments = ["--json", "--top", "10", "--cascade", str(tmp_path / "cascade.json"), str(digits[0])]
    assert main(["predict", str(ensemble), *arguments]) == 0
    splits = load_data("digits")
    assert isinstance(splits.test, ImageSet)
    members = Ensemble.load(ensemble, small_conv)
    alone = members.predict_members(splits.normalization(splits.test.images[:1]))[2, 0]
    (found,) = predicted(capsys)
    assert [found[str(digit)] for digit in range(10)] == pytest.approx(alone.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "expected_error"),
    [
        (["--top", "0"], "--top must be at least 1, got 0"),
        (["--cascade", "nothing.json"], "nothing.json is missing"),
    ],
)
def test_a_mistake_is_one_line(
    ensemble: Path, digits: list[Path], capsys: Captured, arguments: list[str], expected_error: str
) -> None:
    assert expected_error in refused(capsys, ["predict", str(ensemble), str(digits[0]), *arguments])


@pytest.mark.parametrize(
    ("arguments", "expected_error"),
    [
        (
            ["e.pt2"],
            "OUT must not end in .pt2 with --format onnx, got e.pt2; give --format torch, or a name",
        ),
        (
            ["e.ONNX", "--format", "torch"],
            "OUT must not end in .onnx with --format torch, got e.ONNX; give",
        ),
        (["."], "OUT must be a file in a folder that exists, got .; make the folder, or give another file"),
        (
            ["nowhere/e.onnx"],
            "OUT must be a file in a folder that exists, got nowhere/e.onnx; make the folder",
        ),
    ],
)
def test_a_file_that_cannot_be_exported_to_is_refused_before_the_ensemble_is_read(
    capsys: Captured, arguments: list[str], expected_error: str
) -> None:
    assert expected_error in refused(capsys, ["export", "no-ensemble", *arguments])


def test_an_ensemble_in_no_run_needs_a_config(ensemble: Path, digits: list[Path], capsys: Captured) -> None:
    Ensemble.load(ensemble, small_conv).save("mine")
    assert "its data and model are not known" in refused(capsys, ["predict", "mine", str(digits[0])])
    assert "its data and model are not known" in refused(capsys, ["export", "mine", "mine.onnx"])
