"""scikit-learn's handwritten digits: 1797 gray images of 8 x 8 pixels, in ten classes."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pfge.lab.data.in_memory.image_set import DataError, ImageSet
from pfge.lab.data.splits import stratified

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
