import importlib.util
import sys
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torch import Tensor

from pfge.lab.models import build_model, packages
from pfge.lab.models.packages import import_torchvision

needs_torchvision = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None,
    reason="torchvision is not installed; run: pip install torchvision",
)
needs_timm = pytest.mark.skipif(
    importlib.util.find_spec("timm") is None or importlib.util.find_spec("torchvision") is None,
    reason="timm is not installed; run: pip install timm",
)


def stand_in_for_torchvision(folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `import torchvision` run this source until the test ends."""
    (folder / "torchvision.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, "torchvision", sys)  # so that what is there now comes back afterwards
    del sys.modules["torchvision"]


def publish(architecture: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Put a network's weights, for 1000 classes, where those of squeezenet1_1 are looked for; return them."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(folder))
    (folder / "checkpoints").mkdir()
    published = build_model(f"torchvision:{architecture}", classes=1000).state_dict()
    torch.save(published, folder / "checkpoints" / "squeezenet1_1-b8a52dc0.pth")
    return published


def test_an_operator_the_import_misses_is_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import torch\ntorch.library.register_fake('torchvision::absent_one', lambda *boxes: boxes[0])\n"
    stand_in_for_torchvision(tmp_path, source, monkeypatch)
    monkeypatch.setattr(packages, "DETECTION_OPERATORS", ("absent_one",))
    assert import_torchvision().__file__ == str(tmp_path / "torchvision.py")
    schema = torch.ops.torchvision.absent_one.default._schema
    assert str(schema) == "torchvision::absent_one(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def test_an_import_that_succeeds_declares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_torchvision(tmp_path, "", monkeypatch)
    monkeypatch.setattr(packages, "DETECTION_OPERATORS", ("absent_two",))
    import_torchvision()
    with pytest.raises(AttributeError):
        _ = torch.ops.torchvision.absent_two


def test_an_import_that_fails_for_another_reason_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_for_torchvision(tmp_path, "raise RuntimeError('another CUDA')", monkeypatch)
    monkeypatch.setattr(packages, "DETECTION_OPERATORS", ())
    with pytest.raises(RuntimeError, match="another CUDA"):
        import_torchvision()


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_a_package_that_is_not_installed_is_an_error_with_the_remedy(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_for_torchvision(tmp_path, "", monkeypatch)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ValueError, match=rf'needs {package}, .* is not installed; pip install "pfge\[models\]"'
    ):
        build_model(f"{package}:resnet50", classes=10)


def test_other_than_three_channels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"3 channels, got 1; use a model of timm \(timm:NAME\)"):
        build_model("torchvision:resnet50", classes=10, channels=1)


@needs_torchvision
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("resnet50", 25_557_032), ("resnet152", 60_192_808), ("densenet161", 28_681_000)],
)
def test_imagenet_networks_have_their_published_parameters(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = build_model(f"torchvision:{name}", classes=1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@needs_torchvision
def test_classes_reach_a_torchvision_model() -> None:
    model = build_model("torchvision:resnet18", classes=7).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 7)


@needs_torchvision
def test_a_name_torchvision_does_not_have_is_answered_with_the_likeliest() -> None:
    with pytest.raises(ValueError, match="torchvision has no model 'resnet51'; did you mean 'resnet50'"):
        build_model("torchvision:resnet51", classes=10)


@needs_torchvision
def test_an_option_torchvision_does_not_take_is_named() -> None:
    with (
        torch.device("meta"),
        pytest.raises(ValueError, match=r"torchvision:resnet18 does not take .*'depth'"),
    ):
        build_model("torchvision:resnet18", classes=10, depth=5)


@needs_torchvision
def test_weights_that_do_not_exist_are_answered_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="no weights 'V1'; choose from IMAGENET1K_V1, IMAGENET1K_V2"):
        build_model("torchvision:resnet50", classes=1000, weights="V1")


@needs_torchvision
def test_weights_for_another_number_of_classes_are_used_without_their_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = publish("squeezenet1_1", tmp_path, monkeypatch)
    message = (
        r"IMAGENET1K_V1 of torchvision:squeezenet1_1 has 1000 classes and the model 7: classifier.1.weight, "
    )
    with pytest.warns(UserWarning, match=message):
        model = build_model("torchvision:squeezenet1_1", classes=7, weights="IMAGENET1K_V1")
    loaded = model.state_dict()
    assert loaded["classifier.1.weight"].shape == (7, 512, 1, 1)
    others = [name for name in published if not name.startswith("classifier.1.")]
    assert len(others) == len(published) - 2
    assert all(torch.equal(loaded[name], published[name]) for name in others)


@needs_torchvision
def test_trained_weights_that_differ_in_more_than_the_head_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("squeezenet1_0", tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="could not be loaded"):
        build_model("torchvision:squeezenet1_1", classes=7, weights="IMAGENET1K_V1")


@needs_torchvision
def test_a_failed_download_says_where_to_put_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(torch.hub, "urlopen", refuse)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    file = tmp_path / "checkpoints" / "resnet50-0676ba61.pth"
    with torch.device("meta"), pytest.raises(ValueError, match=rf"no network.*put the file at {file}"):
        build_model("torchvision:resnet50", classes=1000, weights="IMAGENET1K_V1")


@needs_torchvision
def test_weights_are_read_from_the_file_put_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = publish("squeezenet1_1", tmp_path, monkeypatch)
    loaded = build_model("torchvision:squeezenet1_1", classes=1000, weights="IMAGENET1K_V1").state_dict()
    assert all(torch.equal(loaded[name], published[name]) for name in published)


@needs_torchvision
def test_a_damaged_file_of_weights_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    file = tmp_path / "checkpoints" / "squeezenet1_1-b8a52dc0.pth"
    file.write_bytes(b"cut short")
    with pytest.raises(ValueError, match=rf"could not be loaded .*put the file at {file}"):
        build_model("torchvision:squeezenet1_1", classes=1000, weights="IMAGENET1K_V1")


@needs_timm
def test_classes_and_channels_reach_a_timm_model() -> None:
    model = build_model("timm:resnet18", classes=7, channels=1).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 1, 32, 32)).shape == (1, 7)


@needs_timm
def test_a_name_timm_does_not_have_is_answered_with_the_likeliest() -> None:
    with pytest.raises(ValueError, match="timm has no model 'resnet-50'; did you mean 'resnet50'"):
        build_model("timm:resnet-50", classes=10)


@needs_timm
@pytest.mark.parametrize("name", ["hf-hub:timm/resnet18.a1_in1k", "local-dir:/models/mine"])
def test_only_models_that_timm_has_itself_are_built(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timm.create_model", None)
    with pytest.raises(ValueError, match=f"timm has no model '{name}'"):
        build_model(f"timm:{name}", classes=10)


@needs_timm
def test_an_option_timm_does_not_take_is_named() -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=r"timm:resnet18 does not take .*'depth'"):
        build_model("timm:resnet18", classes=10, depth=5)


@needs_timm
def test_timms_weights_for_another_number_of_classes_are_used_without_their_head(tmp_path: Path) -> None:
    published = build_model("timm:test_resnet", classes=1000).state_dict()
    torch.save(published, tmp_path / "trained.pth")
    with pytest.warns(
        UserWarning, match=r"timm:test_resnet has 1000 classes and the model 7: fc\.\* are left"
    ):
        model = build_model(
            "timm:test_resnet",
            classes=7,
            pretrained=True,
            pretrained_cfg_overlay={"file": str(tmp_path / "trained.pth")},
        )
    loaded = model.state_dict()
    assert loaded["fc.weight"].shape[0] == 7
    assert all(torch.equal(loaded[name], published[name]) for name in published if not name.startswith("fc."))


@needs_timm
def test_a_checkpoint_of_another_head_is_referred_to_the_setting_that_takes_it(tmp_path: Path) -> None:
    torch.save(build_model("timm:test_resnet", classes=1000).state_dict(), tmp_path / "trained.pth")
    with pytest.raises(
        ValueError, match=r"trained.pth does not fit timm:test_resnet of 7 classes; .*pretrain.weights"
    ):
        build_model("timm:test_resnet", classes=7, checkpoint_path=str(tmp_path / "trained.pth"))
