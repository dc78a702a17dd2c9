from itertools import islice

import pytest
import torch

from pfge.lab.data.base import DataError, Normalization
from pfge.lab.data.batches import Augmentation, TrainingBatches, evaluation_batches, training_batches
from pfge.lab.data.in_memory import ImageSet
from tests.lab.data.in_memory.cropping import cropped_pixel_by_pixel
from tests.lab.data.made import random_images

NORMALIZATION = Normalization((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
UNTOUCHED = Augmentation(crop_padding=0, flip=False)


def make(data: ImageSet, **changes: object) -> TrainingBatches:
    options: dict[str, object] = {"batch_size": 4, "seed": 3, "augmentation": Augmentation(2)} | changes
    return training_batches(data, NORMALIZATION, **options)  # type: ignore[arg-type]


def numbered(count: int) -> ImageSet:
    """Images whose every pixel is the image's own number."""
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).repeat(1, 3, 4, 4)
    return ImageSet(images, torch.arange(count), tuple(map(str, range(count))))


def test_a_batch_is_the_same_bytes_whatever_was_asked_before():
    data = random_images(14)
    fresh, used = make(data), make(data)
    for iteration in (1, 9, 2, 30):
        used.at(iteration)
    inputs, labels = fresh.at(7)
    again, same_labels = used.at(7)
    assert torch.equal(inputs, again)
    assert torch.equal(labels, same_labels)


def test_starting_after_an_iteration_continues_the_same_path():
    batches = make(random_images(14))
    path = [inputs for inputs, _ in islice(batches.starting_after(0), 9)]
    resumed = [inputs for inputs, _ in islice(batches.starting_after(5), 4)]
    assert all(torch.equal(a, b) for a, b in zip(path[5:], resumed, strict=True))


def test_each_epoch_visits_every_image_once():
    batches = make(numbered(12), augmentation=UNTOUCHED)
    for first in (1, 4):
        labels = torch.cat([batches.at(i)[1] for i in range(first, first + batches.per_epoch)])
        assert sorted(labels.tolist()) == list(range(12))


def test_images_stay_with_their_labels():
    inputs, labels = make(numbered(12), augmentation=Augmentation(crop_padding=0)).at(2)
    expected = ((labels / 255)[:, None] - torch.tensor(NORMALIZATION.mean)) / torch.tensor(NORMALIZATION.std)
    torch.testing.assert_close(inputs[:, :, 0, 0], expected)


def test_inputs_are_black_padded_crops_normalised_afterwards():
    data = random_images(4)
    augmentation = Augmentation(crop_padding=2)
    inputs, _ = make(data, batch_size=4, augmentation=augmentation).at(1)
    candidates = torch.stack(
        [
            cropped_pixel_by_pixel(image, 2, top, left, mirrored)
            for image in data.images
            for top in range(5)
            for left in range(5)
            for mirrored in (False, True)
        ]
    )
    expected = (candidates / 255 - torch.tensor(NORMALIZATION.mean)[:, None, None]) / torch.tensor(
        NORMALIZATION.std
    )[:, None, None]
    distance = (inputs[:, None] - expected[None]).abs().amax((2, 3, 4))
    assert (distance.amin(1) < 1e-5).all()


def test_the_same_image_is_augmented_anew_in_every_iteration():
    batches = make(random_images(1, height=20, width=20), batch_size=1)
    seen = {batches.at(iteration)[0].numpy().tobytes() for iteration in range(1, 21)}
    assert len(seen) > 10


def test_channels_last_changes_the_memory_format_and_no_value():
    data = random_images(8)
    plain, _ = make(data).at(3)
    strided, _ = make(data, channels_last=True).at(3)
    assert strided.is_contiguous(memory_format=torch.channels_last)
    assert plain.is_contiguous()
    assert torch.equal(plain, strided)


def test_processes_that_share_a_batch_get_the_images_of_one_process():
    data = random_images(9)
    options = {"batch_size": 4}
    whole, whole_labels = make(data, **options).at(2)
    parts = [make(data, share=(part, 2), **options).at(2) for part in range(2)]
    assert torch.equal(torch.stack([inputs for inputs, _ in parts], 1).flatten(0, 1), whole)
    assert torch.equal(torch.stack([labels for _, labels in parts], 1).flatten(), whole_labels)


def test_making_batches_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    make(random_images(8)).at(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_data_itself_is_never_changed():
    data = random_images(8)
    before = data.images.clone()
    make(data).at(1)
    assert torch.equal(data.images, before)


def test_a_normalization_for_other_channels_is_refused():
    with pytest.raises(DataError, match="each of 1 channels, got 3"):
        make(random_images(8, channels=1))


@pytest.mark.parametrize("channels_last", [False, True])
def test_evaluation_gives_every_image_in_order_as_often_as_asked(channels_last: bool):
    data = random_images(10)
    batches = evaluation_batches(data, NORMALIZATION, batch_size=4, channels_last=channels_last)
    for _ in range(2):
        inputs, labels = zip(*batches, strict=True)
        assert [len(part) for part in labels] == [4, 4, 2]
        assert torch.equal(torch.cat(labels), data.labels)
        assert torch.equal(torch.cat(inputs), NORMALIZATION(data.images))


def test_evaluation_knows_its_number_of_batches():
    assert len(evaluation_batches(random_images(10), NORMALIZATION, batch_size=4)) == 3


def test_an_evaluation_batch_of_no_images_is_refused():
    with pytest.raises(DataError, match="at least 1, got 0"):
        evaluation_batches(random_images(4), NORMALIZATION, batch_size=0)
