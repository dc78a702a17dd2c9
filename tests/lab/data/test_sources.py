from itertools import islice
from pathlib import Path

import pytest
import torch

from pfge.lab.data.base import IMAGENET_NORMALIZATION
from pfge.lab.data.batches import (
    Augmentation,
    DataPart,
    EpochOrder,
    LoaderOptions,
    evaluation_batches,
    training_batches,
)
from pfge.lab.data.pictures import StreamedPictures, find_pictures
from tests.lab.data.made import random_images, write_pictures


@pytest.fixture(params=["in memory", "streamed"])
def images(request: pytest.FixtureRequest, tmp_path: Path) -> DataPart:
    if request.param == "in memory":
        return random_images(6, height=8, width=8)
    write_pictures(tmp_path / "a", 6)
    return StreamedPictures(find_pictures(tmp_path), size=8)


def test_any_images_give_training_batches(images: DataPart):
    source = training_batches(images, IMAGENET_NORMALIZATION, batch_size=2, seed=0, channels_last=True)
    assert source.per_epoch == 3
    path = list(islice(source.starting_after(0), 4))
    resumed, labels = next(source.starting_after(3))
    assert resumed.shape == (2, 3, 8, 8)
    assert resumed.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(resumed, path[3][0])
    assert torch.equal(labels, path[3][1])


def test_every_third_batch_is_that_of_its_iteration(images: DataPart):
    source = training_batches(images, IMAGENET_NORMALIZATION, batch_size=2, seed=0)
    path = list(islice(source.starting_after(0), 8))
    for number, expected in enumerate(([0, 3, 6], [1, 4, 7], [2, 5])):
        found = list(islice(source.starting_after(number, every=3), len(expected)))
        for (inputs, labels), iteration in zip(found, expected, strict=True):
            assert torch.equal(inputs, path[iteration][0])
            assert torch.equal(labels, path[iteration][1])


def test_any_images_give_evaluation_batches(images: DataPart):
    source = evaluation_batches(images, IMAGENET_NORMALIZATION, batch_size=4)
    assert len(source) == 2
    assert torch.equal(torch.cat([labels for _, labels in source]), images.labels)


def test_images_in_memory_are_augmented_as_asked():
    data, augmentation = random_images(6), Augmentation(crop_padding=1)
    source = training_batches(data, IMAGENET_NORMALIZATION, batch_size=2, seed=5, augmentation=augmentation)
    order = EpochOrder(6, batch_size=2, seed=5)
    direct = data.training_batches(IMAGENET_NORMALIZATION, order, LoaderOptions(augmentation=augmentation))
    assert torch.equal(next(source.starting_after(1))[0], direct.at(2)[0])
