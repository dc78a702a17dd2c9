"""Two tables of scikit-learn: breast cancer, in two classes, and diabetes, a regression."""

from typing import Any

import torch
from torch import Tensor

from pfge.lab.data.in_memory.image_set import DataError
from pfge.lab.data.in_memory.tensor_set import TensorSet
from pfge.lab.data.splits import stratified

SPLIT_SEED = 0
CANCER_TEST = 169
DIABETES_TEST = 142


def load_breast_cancer() -> tuple[TensorSet, TensorSet]:
    """Return 400 training and 169 test rows of 30 features, always the same ones.

    The features have mean 0 and standard deviation 1 over the training rows.
    """
    bunch = _load("breast_cancer")
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    test, train = stratified(labels, CANCER_TEST, SPLIT_SEED)
    inputs = _standardize(torch.from_numpy(bunch.data), train).float()
    rows = TensorSet(inputs, labels, tuple(map(str, bunch.target_names)))
    return rows.select(train), rows.select(test)


def load_diabetes() -> tuple[TensorSet, TensorSet]:
    """Return 300 training and 142 test rows of 10 features, and a number to predict, always the same ones.

    Features and targets have mean 0 and standard deviation 1 over the training rows, so errors are
    in units of the target's standard deviation, which is about 77 of the published numbers.
    """
    bunch = _load("diabetes")
    targets = torch.from_numpy(bunch.target)
    test, train = stratified(torch.zeros(len(targets), dtype=torch.int64), DIABETES_TEST, SPLIT_SEED)
    inputs = _standardize(torch.from_numpy(bunch.data), train).float()
    rows = TensorSet(inputs, _standardize(targets, train).float())
    return rows.select(train), rows.select(test)


def _load(name: str) -> Any:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise DataError(
            f'the {name} data needs scikit-learn; install it with pip install "pfge[lab]"'
        ) from error
    return getattr(datasets, f"load_{name}")()


def _standardize(values: Tensor, train: Tensor) -> Tensor:
    return (values - values[train].mean(dim=0)) / values[train].std(dim=0, correction=0)
