from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pfge.lab.data import DataError, DatasetSplits, Splits, TensorSet, load_data
from pfge.tasks import Classification, Regression
from tests.lab.data.datasets.made import Drawing
from tests.lab.tiny import run, tiny

HERE = "tests.lab.data.datasets.test_splits"


def without_validation() -> DatasetSplits:
    return DatasetSplits(train=Drawing(30), test=Drawing(6), classes=("a", "b", "c"))


def empty_test() -> DatasetSplits:
    return DatasetSplits(train=Drawing(30), test=Drawing(0), classes=3)


def masks(highest: int = 1) -> DatasetSplits:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(60, 2, 4, 4, generator=generator)
    targets = (images[:, 0] > 0).long() * highest
    targets[:, 0, 0] = 255
    data = TensorDataset(images, targets)
    return DatasetSplits(train=data, test=data, classes=2, task=Classification(ignore_index=255))


def wrong_masks() -> DatasetSplits:
    return replace(masks(), train=masks(highest=2).train)


def numbers() -> DatasetSplits:
    inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, inputs.sum(dim=1))
    return DatasetSplits(train=data, test=data, task=Regression(noise="predicted"))


def segmenter(classes: int, channels: int) -> nn.Module:
    return nn.Conv2d(channels, classes, 3, padding=1)


class Two(nn.Module):
    """Takes two arguments."""

    def __init__(self, classes: int):
        super().__init__()
        self.linear = nn.Linear(3, classes)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.linear(first + second)


def pairs() -> DatasetSplits:
    rows = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    items = [((row, 2 * row), int(row.sum() > 0)) for row in rows]
    return DatasetSplits(train=items, test=items, classes=2)


def test_validation_is_taken_out_of_the_training_items_class_by_class() -> None:
    splits = load_data(f"{HERE}:without_validation", validation=6)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (24, 6, 6)
    assert splits.validation.labels.bincount().tolist() == [2, 2, 2]
    assert splits.train.class_names == ("a", "b", "c")


@pytest.mark.parametrize("kind", [Splits, DatasetSplits])
def test_parts_are_given_by_name_so_that_none_is_taken_for_another(kind: type) -> None:
    names = [field.name for field in fields(kind)]
    assert names[:3] == ["train", "validation", "test"]
    part = TensorSet(torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(TypeError, match="positional argument"):
        kind(part, part, part)
    assert kind(train=part, validation=part, test=part).test is part


def test_each_dataset_becomes_the_part_that_it_is_named() -> None:
    train, validation, test = Drawing(30), Drawing(12), Drawing(6)
    splits = DatasetSplits(train=train, validation=validation, test=test, classes=3).opened()
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (30, 12, 6)
    assert splits.sizes == "30 training, 12 validation and 6 test examples"


def test_an_empty_part_is_refused() -> None:
    with pytest.raises(DataError, match=r"the test data of .*:empty_test' is empty; give at least one item"):
        load_data(f"{HERE}:empty_test")


SMALL = ("data.batch_size=12", "ensemble.methods=['SWA','PFGE']")


def test_masks_are_compared_by_their_own_metrics(tmp_path: Path) -> None:
    rows = run(tiny(f"data.name={HERE}:masks", f"model.name={HERE}:segmenter", *SMALL), tmp_path / "run")
    assert all(0 < row["test"]["mean_iou"] <= 1 for row in rows)


def test_numbers_are_compared_with_two_outputs_for_each(tmp_path: Path) -> None:
    rows = run(tiny(f"data.name={HERE}:numbers", "model.name=mlp", *SMALL), tmp_path / "run")
    assert all(row["test"]["rmse"] > 0 for row in rows)


def test_a_tuple_of_inputs_is_given_as_arguments(tmp_path: Path) -> None:
    rows = run(tiny(f"data.name={HERE}:pairs", f"model.name={HERE}:Two", *SMALL), tmp_path / "run")
    assert all(row["test"]["accuracy"] > 0.5 for row in rows)


def test_masks_outside_of_the_classes_are_an_error_of_one_line(tmp_path: Path) -> None:
    experiment = tiny(f"data.name={HERE}:wrong_masks", f"model.name={HERE}:segmenter", *SMALL)
    message = r"targets \[12, 4, 4\] for outputs \[12, 2, 4, 4\]: Target 2 is out of bounds.* ignore_index"
    with pytest.raises(ValueError, match=message) as raised:
        run(experiment, tmp_path / "run")
    assert "\n" not in str(raised.value)
