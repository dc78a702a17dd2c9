"""Every config that comes with the project: it loads, its model builds, and its numbers are the paper's."""

import tomllib
from pathlib import Path

import pytest
import torch

from pfge.cli.main import main
from pfge.lab.config.settings import Experiment
from pfge.lab.config.toml import load_experiment, to_toml
from pfge.lab.data.batches import EpochOrder
from pfge.lab.models import build_model
from pfge.lab.run.progress import Reporter
from pfge.lab.session import open_session
from pfge.methods import TrainingPlan, make_collector
from pfge.tasks import Regression
from tests.lab.tiny import run

CONFIGS = Path(__file__).parents[2] / "configs"
EXAMPLE = CONFIGS / "example.toml"
ALL = sorted(CONFIGS.rglob("*.toml"))
PAPER = sorted((CONFIGS / "paper").glob("*.toml"))
DIABETES = CONFIGS / "diabetes.toml"
SMALL = sorted((CONFIGS / "small").glob("*.toml"))

TRAINING_IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "imagenet": 1_281_167}
CLASSES = {"mnist1d": 10, "cifar10": 10, "cifar100": 100, "imagenet": 1000}
PER_EPOCH = {"cifar10": 390, "cifar100": 390, "imagenet": 10_009}  # whole batches of 128
PARAMETERS = {
    "cifar10-vgg16": 15_245_130,
    "cifar10-preresnet164": 1_703_258,
    "cifar10-wideresnet28-10": 36_489_290,
    # 90 more rows of 512, 256 and 640 weights and a bias in the last layer
    "cifar100-vgg16": 15_245_130 + 90 * 513,
    "cifar100-preresnet164": 1_703_258 + 90 * 257,
    "cifar100-wideresnet28-10": 36_489_290 + 90 * 641,
    # as torchvision states them
    "imagenet-resnet50": 25_557_032,
    "imagenet-resnet152": 60_192_808,
    "imagenet-densenet161": 28_681_000,
}
# epochs, rate and weight decay of w0; low and high of the ensembling phase
RECIPES = {
    "vgg16": (200, 0.05, 5e-4, 5e-4, 1e-2),
    "preresnet164": (150, 0.1, 3e-4, 5e-4, 5e-2),
    "wideresnet28-10": (200, 0.1, 5e-4, 5e-4, 5e-2),
}


def identify(path: Path) -> str:
    return str(path.relative_to(CONFIGS))


def per_epoch(experiment: Experiment) -> int:
    data = experiment.data
    images = data.train_images or TRAINING_IMAGES[data.name]
    return EpochOrder(images, batch_size=data.batch_size, seed=0).per_epoch


def setting_of(path: Path) -> TrainingPlan:
    experiment = load_experiment(path)
    return experiment.ensemble.setting(per_epoch(experiment))


def count_parameters(experiment: Experiment) -> int:
    with torch.device("meta"):
        model = build_model(
            experiment.model.name, classes=CLASSES[experiment.data.name], **experiment.model.options
        )
    return sum(parameter.numel() for parameter in model.parameters())


# All of them


@pytest.mark.parametrize("path", ALL, ids=identify)
def test_a_config_loads_and_says_in_two_lines_what_it_is(path: Path) -> None:
    first, second, *_ = path.read_text(encoding="utf-8").splitlines()
    assert load_experiment(path).name
    assert first.startswith("# ")
    assert second.startswith("# ")


def test_every_config_has_a_run_folder_of_its_own() -> None:
    names = [load_experiment(path).name for path in ALL]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "path", [path for path in ALL if path not in (EXAMPLE, DIABETES, *PAPER)], ids=identify
)
def test_the_model_builds(path: Path) -> None:
    assert count_parameters(load_experiment(path)) > 10_000


def test_diabetes_is_a_regression_with_predicted_variance(tmp_path: Path) -> None:
    experiment = load_experiment(DIABETES, ["seeds=[1]", "ensemble.methods=['PFGE']"])
    with open_session(experiment, tmp_path / "run", Reporter(quiet=True)) as session:
        assert (session.task, session.outputs) == (Regression(noise="predicted"), 2)
        assert [len(part) for part in (session.splits.train, session.splits.validation)] == [240, 60]
        assert session.bytes_of_one == 4 * 4994
    rows = {row["method"]: row["test"] for row in run(experiment, tmp_path / "run")}
    # The target's standard deviation is 1, so that its mean has an RMSE of about 1 and an NLL of about 1.42.
    assert all(0.6 < row["rmse"] < 0.75 and 0.9 < row["nll"] < 1.1 for row in rows.values())
    assert all(0.8 < row["coverage"] < 0.97 for row in rows.values())


# The paper's


def test_every_row_of_the_paper_has_a_config() -> None:
    assert {path.stem for path in PAPER} == PARAMETERS.keys()


@pytest.mark.parametrize("path", PAPER, ids=identify)
def test_a_row_is_named_after_its_data_and_model(path: Path) -> None:
    experiment = load_experiment(path)
    model = experiment.model.name.removeprefix("torchvision:")
    assert experiment.name == path.stem == f"{experiment.data.name}-{model}"


@pytest.mark.parametrize("path", PAPER, ids=identify)
def test_a_model_of_the_paper_has_its_parameters(path: Path) -> None:
    assert count_parameters(load_experiment(path)) == PARAMETERS[path.stem]


@pytest.mark.parametrize("path", PAPER, ids=identify)
def test_cycle_period_and_length_are_2_10_and_40_epochs_of_batches_of_128(path: Path) -> None:
    experiment = load_experiment(path)
    batches = PER_EPOCH[experiment.data.name]
    setting = setting_of(path)
    assert experiment.data.batch_size == 128
    assert (setting.cycle, setting.period, setting.iterations) == (2 * batches, 10 * batches, 40 * batches)


@pytest.mark.parametrize("path", [*PAPER, *SMALL], ids=identify)
def test_pfge_makes_4_members_and_fge_and_swag_20(path: Path) -> None:
    setting = setting_of(path)
    fge, pfge = make_collector("FGE", setting), make_collector("PFGE", setting)
    iterations = range(1, setting.iterations + 1)
    assert setting.members == 4
    assert pfge.last_used_iteration(setting.iterations) == setting.iterations
    assert sum(map(fge.due, iterations)) == 20
    assert "samples=20" in str(make_collector("SWAG", setting))


@pytest.mark.parametrize("path", PAPER, ids=identify)
def test_three_seeds_run_all_methods_on_all_data(path: Path) -> None:
    experiment = load_experiment(path)
    assert experiment.seeds == (1, 2, 3)
    assert experiment.ensemble.methods == ("SWA", "FGE", "SWAG", "PFGE")
    assert (experiment.data.train_images, experiment.data.test_images) == (0, 0)
    assert experiment.data.batch_norm_images == 0


@pytest.mark.parametrize("path", [path for path in PAPER if "cifar" in path.stem], ids=identify)
def test_cifar_has_the_recipe_and_rates_of_the_paper(path: Path) -> None:
    experiment = load_experiment(path)
    w0, ensemble = experiment.pretrain, experiment.ensemble
    epochs, rate, decay, low, high = RECIPES[experiment.model.name]
    assert (w0.epochs, w0.rate, w0.weight_decay, w0.momentum) == (epochs, rate, decay, 0.9)
    assert (ensemble.low, ensemble.high, ensemble.weight_decay, ensemble.momentum) == (low, high, decay, 0.9)
    assert (experiment.data.crop_padding, experiment.data.flip) == (4, True)


@pytest.mark.parametrize("path", [path for path in PAPER if "cifar" in path.stem], ids=identify)
def test_curves_are_fitted_and_traced_as_in_the_paper(path: Path) -> None:
    experiment = load_experiment(path)
    curves = experiment.connect
    epochs, rate = (600, 0.015) if experiment.model.name == "vgg16" else (200, 0.03)
    assert (curves.unit, curves.length, curves.rate, curves.momentum) == ("epochs", epochs, rate, 0.9)
    assert (curves.bends, curves.points, curves.images) == (1, 61, 0)
    assert curves.weight_decay == experiment.pretrain.weight_decay


@pytest.mark.parametrize("path", [path for path in PAPER if "imagenet" in path.stem], ids=identify)
def test_imagenet_starts_from_the_weights_of_torchvision_at_the_rates_of_the_paper(path: Path) -> None:
    experiment = load_experiment(path)
    w0, ensemble = experiment.pretrain, experiment.ensemble
    assert (w0.epochs, w0.options) == (0, {"weights": "IMAGENET1K_V1"})
    assert experiment.model.options == {}
    assert (ensemble.low, ensemble.high, ensemble.weight_decay) == (1e-5, 1e-3, 1e-4)


# The small ones


def test_both_cifar_sets_have_three_small_models() -> None:
    models = ("vgg16", "preresnet20", "wideresnet10-2")
    assert {path.stem for path in SMALL} == {
        f"{data}-{model}" for data in ("cifar10", "cifar100") for model in models
    }


@pytest.mark.parametrize("path", SMALL, ids=identify)
def test_a_small_version_has_the_rates_of_its_model_in_the_paper(path: Path) -> None:
    ensemble = load_experiment(path).ensemble
    (paper,) = [recipe for model, recipe in RECIPES.items() if model[:3] in path.stem]
    assert (ensemble.weight_decay, ensemble.low, ensemble.high) == paper[2:]


@pytest.mark.parametrize("path", SMALL, ids=identify)
def test_measuring_is_a_small_part_of_a_small_version(path: Path) -> None:
    # In images: a training step passes one about three times forward. 44 members are refreshed, 45 measured.
    experiment = load_experiment(path)
    setting, data = setting_of(path), experiment.data
    steps = experiment.pretrain.epochs * per_epoch(experiment) + 2 * setting.iterations - setting.period
    training = 3 * steps * data.batch_size
    measuring = 44 * data.batch_norm_images + 45 * data.test_images
    assert 0 < measuring < training / 4


# The template


def keys(toml: str) -> dict[str, set[str]]:
    return {
        name: set(value if isinstance(value, dict) else ()) for name, value in tomllib.loads(toml).items()
    }


def test_the_template_has_every_setting() -> None:
    assert keys(EXAMPLE.read_text(encoding="utf-8")) == keys(to_toml(Experiment()))


def test_the_template_has_defaults_but_for_names() -> None:
    names = ["name=example", "data.name=my_code:load_splits", "model.name=my_code:make_model"]
    assert load_experiment(EXAMPLE) == load_experiment(None, names)


MY_CODE = """
import torch
from torch import nn
from pfge.lab.data import ImageSet, Normalization, Splits

def load_splits():
    images = torch.randint(256, (100, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = ImageSet(images, torch.arange(100) % 2, ("even", "odd"))
    normalization = Normalization.measure(images)
    return Splits(train=data, validation=data.select([]), test=data, normalization=normalization)

def make_model(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""


def test_the_template_runs_with_code_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_code.py").write_text(MY_CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warnings.showwarning", None)
    code = main(["compare", str(EXAMPLE), "--seeds", "1", "--set", "pretrain.epochs=0"])
    assert code == 0
    assert len((tmp_path / "runs" / "example" / "results.jsonl").read_text().splitlines()) == 7
