import sys

import pytest
import torch
from sklearn import datasets

from pfge.lab.data import packaged
from pfge.lab.data.base import DataError
from pfge.lab.data.packaged import load_digits


def test_training_and_test_images_are_all_digits_once():
    train, test = load_digits()
    assert (len(train), len(test)) == (1000, 797)
    raw = torch.from_numpy(datasets.load_digits().images)
    expected = sorted((image * 255 / 16).floor().to(torch.uint8).numpy().tobytes() for image in raw)
    assert sorted(image.numpy().tobytes() for image in (*train.images, *test.images)) == expected


def test_pixels_span_the_whole_range_in_one_channel():
    train, _ = load_digits()
    assert train.images.shape[1:] == (1, 8, 8)
    assert (int(train.images.min()), int(train.images.max())) == (0, 255)


def test_the_classes_keep_their_proportions_in_the_test_part():
    # scikit-learn's digits: 178 182 177 183 181 182 181 179 174 180; 797 / 1797 of each.
    _, test = load_digits()
    assert torch.bincount(test.labels).tolist() == [79, 81, 79, 81, 80, 81, 80, 79, 77, 80]


def test_the_split_is_always_the_same():
    assert torch.equal(load_digits()[1].images, load_digits()[1].images)


def test_scikit_learn_reads_its_file_if_it_lies_elsewhere(monkeypatch: pytest.MonkeyPatch):
    found = load_digits()
    monkeypatch.setattr(packaged, "FILE", "datasets/nowhere.csv.gz")
    for part, same in zip(found, load_digits(), strict=True):
        assert torch.equal(part.images, same.images)
        assert torch.equal(part.labels, same.labels)
        assert part.class_names == same.class_names


def test_missing_scikit_learn_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataError, match=r'pip install "pfge\[lab\]"'):
        load_digits()
