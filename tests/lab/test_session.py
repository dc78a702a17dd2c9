"""The data of an experiment: how many images of each part, and always the same ones."""

import json
import multiprocessing
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pfge.lab.config.settings import ConfigError
from pfge.lab.data import DataError, DataPart, DatasetSplits, ImageSet, Splits, TensorSet
from pfge.lab.data.base import DataWarning
from pfge.lab.data.pictures import stream_folders
from pfge.lab.run.progress import Reporter
from pfge.lab.session import open_session
from pfge.weights import view_weights
from tests.lab.data.made import write_pictures
from tests.lab.tiny import run, tiny

# Digits have 1000 images for training and 797 for testing.


def splits_of(folder: Path, *overrides: str) -> Splits:
    with open_session(
        tiny(*overrides), folder / "-".join(overrides).replace("/", "_"), Reporter(quiet=True)
    ) as session:
        return session.splits


def sizes(splits: Splits) -> tuple[int, int, int]:
    return len(splits.train), len(splits.validation), len(splits.test)


def pictures(images: DataPart) -> set[bytes]:
    assert isinstance(images, ImageSet)
    return {image.numpy().tobytes() for image in images.images}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], (1000, 0, 797)),
        (["data.train_images=200"], (200, 0, 797)),
        (["data.test_images=50"], (1000, 0, 50)),
        (["data.validation=100", "data.train_images=900"], (900, 100, 797)),
        (["data.validation_from_test=true", "data.test_images=50"], (1000, 50, 50)),
    ],
)
def test_each_part_has_the_images_asked_for(
    tmp_path: Path, overrides: list[str], expected: tuple[int, int, int]
) -> None:
    assert sizes(splits_of(tmp_path, *overrides)) == expected


def test_fewer_images_keep_the_proportions_of_the_classes(tmp_path: Path) -> None:
    whole = torch.bincount(splits_of(tmp_path).train.labels)
    part = torch.bincount(splits_of(tmp_path, "data.train_images=100").train.labels)
    assert (part - whole / 10).abs().max() < 1


def test_the_seed_of_the_split_alone_decides_which_images(tmp_path: Path) -> None:
    few = "data.train_images=100"
    first, same, other = (
        pictures(splits_of(tmp_path, few, more).train)
        for more in ("seeds=[1]", "seeds=[2]", "data.split_seed=1")
    )
    assert first == same != other


def test_validation_images_are_the_same_with_fewer_for_training(tmp_path: Path) -> None:
    whole = splits_of(tmp_path, "data.validation=100")
    part = splits_of(tmp_path, "data.validation=100", "data.train_images=100")
    assert pictures(part.validation) == pictures(whole.validation)
    assert pictures(part.train) < pictures(whole.train)


def test_fewer_images_of_a_halved_test_set_stay_in_their_half(tmp_path: Path) -> None:
    whole = splits_of(tmp_path, "data.validation_from_test=true")
    part = splits_of(tmp_path, "data.validation_from_test=true", "data.test_images=50")
    assert pictures(part.test) < pictures(whole.test)
    assert pictures(part.validation) < pictures(whole.validation)


@pytest.mark.parametrize("key", ["train_images", "test_images"])
def test_fewer_than_no_images_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"data\.{key} must be at least 0 and finite, got -1"):
        tiny(f"data.{key}=-1")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.train_images=1001"], "training data has 1000 images, so from 1 to 1000 .* got 1001"),
        (["data.validation=100", "data.train_images=901"], "training data has 900 images"),
        (["data.test_images=798"], "test data has 797 images"),
        (["data.validation_from_test=true", "data.test_images=399"], "half of the test data has 398 images"),
    ],
)
def test_more_images_than_there_are_are_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        splits_of(tmp_path, *overrides)


def test_a_model_that_cannot_take_the_images_is_refused_before_any_work(tmp_path: Path) -> None:
    message = r"model.name = 'vgg16' must take the inputs of data.name = 'digits', which are \[1, 8, 8\]: "
    with pytest.raises(ConfigError, match=message):
        splits_of(tmp_path, "model.name=vgg16")


def test_a_saved_ensemble_says_how_its_model_is_built(tmp_path: Path) -> None:
    with open_session(tiny(), tmp_path / "run", Reporter(quiet=True)) as session:
        ensemble = session.make_ensemble([view_weights(session.build_model())])
        ensemble.save(tmp_path / "saved")
    manifest = json.loads((tmp_path / "saved" / "manifest.json").read_text())
    assert manifest["model"] == "small_conv(classes=10)"


def test_batches_for_batch_norm_are_dealt_out_among_processes_as_often_as_they_are_read(
    tmp_path: Path,
) -> None:
    # 500 images in batches of 50.
    with open_session(tiny("data.batch_norm_images=500"), tmp_path / "run", Reporter(quiet=True)) as session:
        whole = [inputs for inputs, _ in session.batch_norm_batches(1)]
        assert len(whole) == 10
        for number, expected in enumerate(([0, 3, 6, 9], [1, 4, 7], [2, 5, 8])):
            mine = session.batch_norm_batches(1, share=(number, 3))
            for _ in range(2):
                found = [inputs for inputs, _ in mine]
                assert len(found) == len(expected)
                assert all(torch.equal(one, whole[at]) for one, at in zip(found, expected, strict=True))


def test_pictures_have_the_size_that_the_config_asks_for(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        write_pictures(tmp_path / "pets" / name, 5)
    splits = splits_of(
        tmp_path, f"data.name=folder:{tmp_path / 'pets'}", "data.image_size=24", "data.batch_size=2"
    )
    assert isinstance(splits.train, ImageSet)
    assert splits.train.images.shape[1:] == (3, 24, 24)


@pytest.mark.parametrize("setting", ["data.crop_padding=1", "data.flip=true"])
def test_augmentation_of_pictures_is_refused_for_other_data(tmp_path: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match=r"crop_padding and data.flip apply to images"):
        splits_of(tmp_path, "data.name=breast_cancer", "model.name=mlp", setting)


@pytest.mark.parametrize("setting", ["data.name=folder:PETS", "data.validation=8"])
def test_validation_data_that_halving_the_test_data_leaves_unused_is_said(
    tmp_path: Path, setting: str
) -> None:
    for part in ("train", "val", "test"):
        write_pictures(tmp_path / "pets" / part / "cat", 4)
        write_pictures(tmp_path / "pets" / part / "dog", 4)
    setting = setting.replace("PETS", str(tmp_path / "pets"))
    with pytest.warns(UserWarning, match="so the other 8 validation examples are not used at all; set data"):
        splits_of(tmp_path, setting, "data.validation_from_test=true")


def streamed(folder: Path) -> tuple[str, ...]:
    for name in ("cat", "dog"):
        write_pictures(folder / "pets" / name, 5)
    return f"data.name=stream:{folder / 'pets'}", "data.image_size=16", "data.batch_size=2"


def test_crops_after_padding_are_said_to_be_of_no_use_for_streamed_pictures(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"training ignores data.crop_padding .* got 2 with"):
        splits_of(tmp_path, *streamed(tmp_path), "data.crop_padding=2")


@pytest.mark.parametrize("flip", ["true", "false"])
def test_streamed_pictures_may_be_said_to_be_mirrored_as_they_are(tmp_path: Path, flip: str) -> None:
    assert sizes(splits_of(tmp_path, *streamed(tmp_path), f"data.flip={flip}")) == (8, 0, 2)


def test_an_unreadable_first_test_picture_does_not_stop_a_run(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        write_pictures(tmp_path / "pets" / name, 10)
    stream_folders(tmp_path / "pets", size=16).test.files.path(0).write_bytes(b"not a picture")
    experiment = tiny(f"data.name=stream:{tmp_path / 'pets'}", "data.image_size=16", "data.batch_size=2")
    with (
        pytest.warns(DataWarning, match="the next one of its class takes its place"),
        open_session(experiment, tmp_path / "run", Reporter(quiet=True)) as session,
    ):
        inputs, targets = session.first_batch(2)
    assert torch.equal(inputs[0], inputs[1])
    assert targets.tolist() == [0, 0]


# Data and models of a user

NUMBERS = torch.arange(40) % 2
ROWS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)) + NUMBERS[:, None]


def tables(inputs: Tensor, targets: Tensor = NUMBERS, names: tuple[str, ...] = ("no", "yes")) -> Splits:
    rows = TensorSet(inputs, targets, names)
    return Splits(train=rows.select(range(30)), validation=rows.select([]), test=rows.select(range(30, 40)))


def of_type(which: str) -> Splits:
    return tables(ROWS, NUMBERS.to(getattr(torch, which)))


def with_int32() -> Splits:
    return of_type("int32")


def with_bool() -> Splits:
    return of_type("bool")


def items_with_int32() -> DatasetSplits:
    items = TensorDataset(ROWS, NUMBERS.int())
    return DatasetSplits(train=items, test=items, classes=2)


def broken(row: int, value: float) -> Splits:
    inputs = ROWS.clone()
    inputs[row, 1] = value
    return tables(inputs)


def with_nan() -> Splits:
    return broken(7, float("nan"))


def with_infinity_in_test() -> Splits:
    return broken(32, float("inf"))


def with_nan_in_the_first_test_row() -> Splits:
    return broken(30, float("nan"))


class Filling(nn.Module):
    """Replaces what is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs.nan_to_num())


class SmallTable(Filling):
    """Looks rows up of which there are too few."""

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.embedding(torch.full((len(inputs),), 9), self.layer.weight)


class Silent(Filling):
    """Has an error without a text."""

    def forward(self, _: Tensor) -> Tensor:
        raise ValueError


def own(function: str, model: str = "mlp") -> list[str]:
    model = model if model == "mlp" else f"tests.lab.test_session:{model}"
    return [f"data.name=tests.lab.test_session:{function}", f"model.name={model}", "data.batch_size=5"]


@pytest.mark.filterwarnings("ignore:the temperature stays 1")  # of six examples
@pytest.mark.parametrize("function", ["with_int32", "with_bool", "items_with_int32"])
def test_whole_numbers_of_any_type_are_trained_on_as_classes(tmp_path: Path, function: str) -> None:
    rows = run(tiny(*own(function), "data.validation=6", "ensemble.methods=['SWA']"), tmp_path / "run")
    assert [row["method"] for row in rows] == ["w0", "SWA"]


@pytest.mark.parametrize(
    ("model", "reason"), [("SmallTable", "index out of range in self"), ("Silent", "ValueError")]
)
def test_any_error_of_a_model_is_told_in_one_line_before_any_work(
    tmp_path: Path, model: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=rf"must take the inputs of .* which are \[4\]: {reason}$"):
        splits_of(tmp_path, *own("with_int32", model))


class Frozen(Filling):
    """Has nothing to train."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


def test_a_model_of_frozen_parameters_is_refused(tmp_path: Path) -> None:
    message = r"Frozen' must have parameters to train, got 2 of which all are frozen; leave requires_grad"
    with pytest.raises(ConfigError, match=message):
        splits_of(tmp_path, *own("with_int32", "Frozen"))


@pytest.mark.parametrize(
    ("function", "place"),
    [
        ("with_nan", "nan in example 7 of the 30 for training"),
        ("with_infinity_in_test", "inf in example 2 of the 10 for testing"),
        ("with_nan_in_the_first_test_row", "nan in example 0 of the 10 for testing"),
    ],
)
def test_inputs_that_are_not_finite_are_refused_before_any_work(
    tmp_path: Path, function: str, place: str
) -> None:
    with pytest.raises(DataError, match=rf"inputs must be finite, got {place}"):
        splits_of(tmp_path, *own(function))


def test_a_model_may_replace_inputs_that_are_not_finite(tmp_path: Path) -> None:
    assert sizes(splits_of(tmp_path, *own("with_nan", "Filling"))) == (30, 0, 10)


def test_a_worker_that_imports_an_unguarded_script_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    message = r"engine\.launcher = 'here:2' does; put the call under if __name__ == '__main__':"
    with pytest.raises(ConfigError, match=message):
        splits_of(tmp_path, "engine.launcher=here:2")
    assert list(tmp_path.iterdir()) == []
