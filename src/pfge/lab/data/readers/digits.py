"""scikit-learn's handwritten digits: 1797 gray images of 8 x 8 pixels, in ten classes."""

import torch

from pfge.lab.data.in_memory.image_set import DataError, ImageSet
from pfge.lab.data.splits import stratified

TEST_SIZE = 797
SPLIT_SEED = 0


def load_digits() -> tuple[ImageSet, ImageSet]:
    """Return 1000 training and 797 test images, always the same ones.

    The pixel values 0..16 become `value * 255 // 16`, so 0..255.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise DataError(
            'the digits data needs scikit-learn; install it with pip install "pfge[lab]"'
        ) from error
    bunch = datasets.load_digits()
    raw = torch.from_numpy(bunch.images).to(torch.int64)
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    images = (raw * 255 // 16).to(torch.uint8)[:, None]
    everything = ImageSet(images, labels, tuple(str(name) for name in bunch.target_names))
    test, train = stratified(labels, TEST_SIZE, SPLIT_SEED)
    return everything.select(train), everything.select(test)
