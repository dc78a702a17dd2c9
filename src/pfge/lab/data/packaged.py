"""Small data sets of installed packages: digits, tables and MNIST-1D."""

import random
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfge.lab.data.base import DataError
from pfge.lab.data.in_memory import ImageSet, TensorSet
from pfge.lab.data.splits import stratified
from pfge.storage.files import StorageError, read_recorded, record_of, write_recorded

FILE = "datasets/data/digits.csv.gz"
"""In scikit-learn: lines of 64 pixels and the class."""
CLASSES = 10
TEST_SIZE = 797
SPLIT_SEED = 0


def load_digits() -> tuple[ImageSet, ImageSet]:
    """Return 1000 training and 797 test images, always the same ones.

    The pixel values 0..16 become `value * 255 // 16`, so 0..255.
    """
    raw, labels = _read()
    images = (raw * 255 // 16).to(torch.uint8)[:, None]
    everything = ImageSet(images, labels, tuple(map(str, range(CLASSES))))
    test, train = stratified(labels, TEST_SIZE, SPLIT_SEED)
    return everything.select(train), everything.select(test)


def _read() -> tuple[Tensor, Tensor]:
    """Return the pixels, [N, 8, 8], and the classes.

    The file is read without importing scikit-learn if it is where it has always been: that takes a second.
    """
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise DataError('the digits data needs scikit-learn; install it with pip install "pfge[lab]"')
    file = Path(found.origin).parent / FILE
    if file.exists():
        table = np.loadtxt(file, delimiter=",")
        pixels, classes = table[:, :-1].reshape(-1, 8, 8), table[:, -1]
    else:
        from sklearn import datasets

        bunch = datasets.load_digits()
        pixels, classes = bunch.images, bunch.target
    return torch.from_numpy(pixels).to(torch.int64), torch.from_numpy(classes).to(torch.int64)


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


PARTS = (4000, 2000, 8000)
SEED = 42  # that of the published data
KEYS = INPUTS, LABELS = "inputs", "labels"


@cache
def load_mnist1d(root: Path) -> tuple[TensorSet, TensorSet, TensorSet]:
    """Return 4000 training, 2000 validation and 8000 test signals, always the same ones, [N, 1, 40].

    The generator scales all signals together to mean 0 and standard deviation 1. Nothing is downloaded.

    Args:
        root: Folder that caches the generated data, because generating it takes seconds.
    """
    try:
        made = _read_or_generate(root / f"mnist1d-{version('mnist1d')}-{SEED}.safetensors")
    except ImportError as error:
        raise DataError(
            'the mnist1d data needs the package mnist1d; install it with pip install "pfge[mnist1d]"'
        ) from error
    names = tuple(map(str, range(10)))
    everything = TensorSet(made[INPUTS], made[LABELS], names)
    first, second, end = accumulate(PARTS)
    return (
        everything.select(range(first)),
        everything.select(range(first, second)),
        everything.select(range(second, end)),
    )


def _read_or_generate(file: Path) -> dict[str, Tensor]:
    if record_of(file).exists():
        with suppress(StorageError):  # damaged: it is generated again
            made = read_recorded(file)
            if {name: len(tensor) for name, tensor in made.items()} == dict.fromkeys(KEYS, sum(PARTS)):
                return made
    made = _generate()
    with suppress(OSError):  # a folder that cannot be written to only costs time
        file.parent.mkdir(parents=True, exist_ok=True)
        write_recorded(file, made)
    return made


def _generate() -> dict[str, Tensor]:
    from mnist1d.data import get_dataset_args, make_dataset

    settings = get_dataset_args()
    settings.num_samples, settings.seed = sum(PARTS), SEED
    states = random.getstate(), np.random.get_state()  # the generator seeds the global ones
    try:
        made = make_dataset(settings)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    return {
        INPUTS: torch.from_numpy(np.concatenate([made["x"], made["x_test"]])).float()[:, None],
        LABELS: torch.from_numpy(np.concatenate([made["y"], made["y_test"]])),
    }
