import random
import sys

import numpy as np
import pytest
import torch

from pfge.lab.data import DataError, load_data
from pfge.lab.data.readers.mnist1d import load_mnist1d


def test_signals_are_always_the_same_and_in_ten_classes() -> None:
    splits = load_data("mnist1d")
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (4000, 2000, 8000)
    assert splits.channels == 1
    assert splits.train.inputs.shape == (4000, 1, 40)
    everything = torch.cat([part.inputs for part in (splits.train, splits.validation, splits.test)])
    assert everything.mean().item() == pytest.approx(0, abs=1e-5)
    assert everything.std().item() == pytest.approx(1, abs=1e-4)
    labels = torch.cat([part.labels for part in (splits.train, splits.validation, splits.test)])
    assert labels.bincount().tolist() == [1400] * 10
    again = load_mnist1d.__wrapped__()[0]
    assert torch.equal(again.inputs, splits.train.inputs)


def test_generating_leaves_the_global_random_numbers_alone() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    load_mnist1d.__wrapped__()
    assert (random.random(), np.random.rand()) == expected


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mnist1d.data", None)
    with pytest.raises(DataError, match=r"pip install \"pfge\[mnist1d\]\""):
        load_mnist1d.__wrapped__()
