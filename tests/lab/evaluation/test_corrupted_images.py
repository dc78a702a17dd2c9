from pathlib import Path

import pytest
import torch

from pfge.lab.data import IMAGENET_NORMALIZATION, DataError, ImageSet, evaluation_batches, training_batches
from pfge.lab.data.pictures import StreamedPictures, find_pictures
from pfge.lab.evaluation.corruptions import CORRUPTIONS, corrupt, corrupted
from tests.lab.data.made import random_images, write_pictures


@pytest.fixture
def pictures(tmp_path: Path) -> StreamedPictures:
    for number, name in enumerate(("a", "b")):
        write_pictures(tmp_path / name, 5, seed=number)
    return StreamedPictures(find_pictures(tmp_path), size=14)


def in_memory(pictures: StreamedPictures) -> ImageSet:
    """The same pictures, their pixels taken back out of normalized inputs."""
    ((inputs, labels),) = evaluation_batches(pictures, IMAGENET_NORMALIZATION, batch_size=100)
    mean, std = (
        torch.tensor(values).view(3, 1, 1)
        for values in (IMAGENET_NORMALIZATION.mean, IMAGENET_NORMALIZATION.std)
    )
    return ImageSet(((inputs * std + mean) * 255).round().to(torch.uint8), labels, pictures.class_names)


def test_a_set_in_memory_keeps_its_labels_and_original_images():
    data = random_images(5)
    before = data.images.clone()
    result = corrupted(data, "noise", 4, seed=3)
    assert torch.equal(result.images, corrupt(data.images, "noise", 4, seed=3))
    assert not torch.equal(result.images, before)
    assert torch.equal(data.images, before)
    assert torch.equal(result.labels, data.labels)
    assert result.class_names == data.class_names


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_stream_gives_the_inputs_of_the_same_set_in_memory(name: str, pictures: StreamedPictures):
    options = {"batch_size": 4, "channels_last": True}
    streamed = evaluation_batches(corrupted(pictures, name, 3, seed=1), IMAGENET_NORMALIZATION, **options)
    held = evaluation_batches(
        corrupted(in_memory(pictures), name, 3, seed=1), IMAGENET_NORMALIZATION, **options
    )
    assert len(streamed) == len(held) == 3
    for _ in range(2):  # every member reads it again
        for (inputs, labels), (same_inputs, same_labels) in zip(streamed, held, strict=True):
            assert torch.equal(inputs, same_inputs)
            assert inputs.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(labels, same_labels)


def test_a_selection_of_a_corrupted_stream_has_the_same_noise(pictures: StreamedPictures):
    stream = corrupted(pictures, "noise", 5, seed=1)
    ((whole, _),) = evaluation_batches(stream, IMAGENET_NORMALIZATION, batch_size=10)
    selected = stream.select(torch.tensor([9, 1, 3, 4])).select([0, 2, 3])
    ((part, labels),) = evaluation_batches(selected, IMAGENET_NORMALIZATION, batch_size=10)
    assert torch.equal(part, whole[[9, 3, 4]])
    assert labels.tolist() == selected.labels.tolist() == [1, 0, 0]
    assert len(selected) == 3
    assert selected.class_names == ("a", "b")


def test_training_on_a_corrupted_stream_is_refused(pictures: StreamedPictures):
    stream = corrupted(pictures, "blur", 1, seed=0)
    with pytest.raises(DataError, match="for evaluation only; train on the data as it is"):
        training_batches(stream, IMAGENET_NORMALIZATION, batch_size=2, seed=0)


def test_a_wrong_name_or_strength_is_refused_before_any_image_is_read(pictures: StreamedPictures):
    with pytest.raises(DataError, match="did you mean 'contrast'"):
        corrupted(pictures, "contrasts", 1, seed=0)
    with pytest.raises(DataError, match="strength must be from 1 to 5, got 9"):
        corrupted(pictures, "contrast", 9, seed=0)
