import numpy as np
import pytest
import torch
from sklearn import datasets

from pfge.lab.data import load_data


@pytest.mark.parametrize(
    ("name", "sizes", "features"), [("breast_cancer", (360, 40, 169), 30), ("diabetes", (270, 30, 142), 10)]
)
def test_tables_are_split_and_scaled_by_their_training_rows(
    name: str, sizes: tuple[int, ...], features: int
) -> None:
    splits = load_data(name, validation=0.1)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == sizes
    assert splits.channels == features
    known = torch.cat([splits.train.inputs, splits.validation.inputs])
    assert torch.allclose(known.mean(dim=0), torch.zeros(features), atol=1e-5)
    assert torch.allclose(known.std(dim=0, correction=0), torch.ones(features), atol=1e-5)


def test_cancer_has_two_classes_in_the_proportions_of_the_whole() -> None:
    splits = load_data("breast_cancer")
    assert splits.train.class_names == ("malignant", "benign")
    shares = [part.labels.double().mean().item() for part in (splits.train, splits.test)]
    assert shares == pytest.approx([357 / 569] * 2, abs=0.005)


def test_a_target_of_diabetes_is_in_standard_deviations() -> None:
    splits = load_data("diabetes")
    assert splits.train.class_names == ()
    assert splits.train.labels.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    published = np.sort(datasets.load_diabetes().target)
    found = torch.cat([splits.train.labels, splits.test.labels]).double().numpy()
    slope, _ = np.polyfit(np.sort(found), published, 1)
    assert slope == pytest.approx(77, abs=2)
