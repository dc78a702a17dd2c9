import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pfge.lab.models import available, build_model
from pfge.lab.models.networks import VGG16, CifarResNet, PreResNet, WideResNet


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(
        "from torch import nn\n"
        "def only_classes(classes): return nn.Linear(4, classes)\n"
        "def both(classes, channels, width=8): return nn.Linear(channels * width, classes)\n"
        "def anything(**given): return nn.Linear(given['channels'], given['classes'])\n"
        "def needs_width(width, classes): return nn.Linear(width, classes)\n"
        "def forgets_to_return(classes): pass\n"
        "number = 3\n"
    )
    (tmp_path / "broken_models.py").write_text("import a_package_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_models", raising=False)


def linear_shape(model: nn.Module) -> tuple[int, int]:
    assert isinstance(model, nn.Linear)
    return model.in_features, model.out_features


@pytest.mark.parametrize(
    ("name", "kind", "parameters"),
    [
        ("vgg16", VGG16, 15_245_130),
        ("preresnet164", PreResNet, 1_703_258),
        ("wideresnet28-10", WideResNet, 36_489_290),
        ("resnet20", CifarResNet, 269_722),
        ("resnet110", CifarResNet, 1_727_962),
        ("small_conv", nn.Sequential, 24_346),
    ],
)
def test_a_name_stands_for_its_architecture(name: str, kind: type[nn.Module], parameters: int) -> None:
    with torch.device("meta"):
        model = build_model(name, classes=10)
    assert type(model) is kind
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("name", ["preresnet11", "wideresnet10-1", "resnet8", "small_conv"])
def test_classes_and_channels_reach_the_model(name: str) -> None:
    model = build_model(name, classes=5, channels=1)
    assert model(torch.zeros(2, 1, 16, 16)).shape == (2, 5)


def test_options_reach_the_model() -> None:
    model = build_model("wideresnet10-1", classes=10, dropout=0.3)
    assert {layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)} == {0.3}


def test_what_is_available_reads_as_patterns() -> None:
    assert available() == (
        "vgg16",
        "small_conv",
        "conv1d",
        "mlp",
        "resnetN with N = 6n+2 (resnet20)",
        "preresnetN with N = 9n+2 (preresnet164)",
        "wideresnetD-W with D = 6n+4 (wideresnet28-10)",
        "torchvision:NAME",
        "timm:NAME",
        "package.module:function",
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("resnt20", "resnet20"),
        ("ResNet-20", "resnet20"),
        ("VGG-16", "vgg16"),
        ("wrn28-10", "wideresnet28-10"),
        ("wideresnet28", "wideresnet28-10"),
    ],
)
def test_an_unknown_name_is_answered_with_the_likeliest(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"unknown model '{name}'; did you mean '{meant}'?"):
        build_model(name, classes=10)


def test_an_unknown_name_is_answered_with_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'q'; choose from: vgg16, .*package.module:fun"):
        build_model("q", classes=10)


@pytest.mark.parametrize(
    ("name", "rule", "nearest"),
    [
        ("resnet21", r"6n\+2, got 21", "resnet20 and resnet26"),
        ("resnet2", r"6n\+2, got 2", "resnet8"),
        ("preresnet163", r"9n\+2, got 163", "preresnet155 and preresnet164"),
        ("wideresnet29-10", r"6n\+4, got 29", "wideresnet28-10 and wideresnet34-10"),
        ("wideresnet4-4", r"6n\+4, got 4", "wideresnet10-4"),
    ],
)
def test_a_depth_that_does_not_fit_is_answered_with_the_nearest(name: str, rule: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=rf"{rule} in '{name}'; nearest: {nearest} \("):
        build_model(name, classes=10)


def test_an_option_the_model_does_not_take_is_answered_with_those_it_does() -> None:
    with pytest.raises(ValueError, match=r"unexpected keyword argument 'droput'; .*dropout: float = 0.0"):
        build_model("wideresnet10-1", classes=10, droput=0.3)


def test_the_depth_in_the_name_cannot_be_contradicted() -> None:
    with pytest.raises(ValueError, match="blocks"):
        build_model("resnet20", classes=10, blocks=5)


@pytest.mark.parametrize(("classes", "channels", "text"), [(0, 3, "classes"), (10, -1, "channels")])
def test_a_count_below_one_is_refused(classes: int, channels: int, text: str) -> None:
    with pytest.raises(ValueError, match=f"{text} must be at least 1, got {min(classes, channels)}"):
        build_model("small_conv", classes=classes, channels=channels)


@pytest.mark.usefixtures("own_models")
class TestOwnFunction:
    def test_gets_only_what_it_takes(self) -> None:
        assert linear_shape(build_model("own_models:only_classes", classes=5)) == (4, 5)

    def test_gets_classes_channels_and_options(self) -> None:
        model = build_model("own_models:both", classes=5, channels=2, width=3)
        assert linear_shape(model) == (6, 5)

    def test_that_takes_anything_gets_everything(self) -> None:
        assert linear_shape(build_model("own_models:anything", classes=5, channels=2)) == (2, 5)

    def test_that_lacks_a_parameter_is_an_error_that_names_it(self) -> None:
        with pytest.raises(ValueError, match=r"missing a required argument: 'width'.*\(width, classes\)"):
            build_model("own_models:needs_width", classes=5)

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("own_models:absent", "no attribute 'absent'"),
            ("no_such_package.models:net", "No module named 'no_such_package'"),
            ("broken_models:net", "No module named 'a_package_nobody_has'"),
            (":net", "invalid format"),
        ],
    )
    def test_that_cannot_be_imported_is_an_error_that_says_where_to_put_it(
        self, name: str, reason: str
    ) -> None:
        with pytest.raises(ValueError, match=rf"'{name}' cannot be imported: .*{reason}.*PYTHONPATH"):
            build_model(name, classes=5)

    def test_must_be_callable(self) -> None:
        with pytest.raises(ValueError, match="model 'own_models:number' must be a function, got int"):
            build_model("own_models:number", classes=5)

    def test_must_return_a_module(self) -> None:
        with pytest.raises(ValueError, match=r"must return a torch.nn.Module, got NoneType"):
            build_model("own_models:forgets_to_return", classes=5)


@pytest.mark.slow
def test_other_packages_are_imported_only_when_asked_for() -> None:
    program = "import sys, pfge.lab.models; print({'torchvision', 'timm'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


def make_broken(classes: int) -> nn.Module:
    raise KeyError(f"no head of {classes} classes")


def test_a_function_that_fails_is_named_with_its_error() -> None:
    message = f"model '{__name__}:make_broken' cannot be built: KeyError: 'no head of 3 classes'; correct its"
    with pytest.raises(ValueError, match=message):
        build_model(f"{__name__}:make_broken", classes=3)


def make_failing(message: str) -> nn.Module:
    raise RuntimeError(message)


def test_a_runtime_error_of_a_function_is_told_in_one_line() -> None:
    message = "make_failing' cannot be built: RuntimeError: no CUDA; correct its code or options"
    with pytest.raises(ValueError, match=message):
        build_model(f"{__name__}:make_failing", classes=3, message="no CUDA\nand more")


def test_a_lack_of_memory_is_left_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="not enough memory"):
        build_model(f"{__name__}:make_failing", classes=3, message="DefaultCPUAllocator: not enough memory")
