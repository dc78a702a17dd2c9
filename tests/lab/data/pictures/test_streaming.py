import warnings
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pfge.lab.data.base import IMAGENET_NORMALIZATION, DataError, DataWarning
from pfge.lab.data.batches import TrainingBatches, training_batches
from pfge.lab.data.pictures import (
    StreamedPictures,
    center_crop,
    find_pictures,
    open_picture,
)
from tests.lab.data.made import write_pictures


@pytest.fixture
def pictures(tmp_path: Path) -> StreamedPictures:
    for number, name in enumerate(("a", "b")):
        write_pictures(tmp_path / name, 5, seed=number)
    return StreamedPictures(find_pictures(tmp_path), size=14)


def training(pictures: StreamedPictures, **changes: object) -> TrainingBatches:
    options: dict[str, object] = {"batch_size": 4, "seed": 3} | changes
    return training_batches(pictures, IMAGENET_NORMALIZATION, **options)  # type: ignore


def test_a_batch_is_the_same_whether_workers_or_this_process_read_it(pictures: StreamedPictures):
    batches = training(pictures, workers=2)
    read_ahead = list(islice(batches.starting_after(1), 4))
    for iteration, (inputs, labels) in enumerate(read_ahead, start=2):
        again, same_labels = training(pictures).at(iteration)
        assert torch.equal(inputs, again)
        assert torch.equal(labels, same_labels)


def test_pictures_of_batches_that_are_skipped_are_not_read(pictures: StreamedPictures):
    pictures.files.path(3).write_bytes(b"not a picture")
    met = []
    for first in range(2):  # 10 pictures make 5 batches
        batches = training(pictures, batch_size=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            read = list(islice(batches.starting_after(first, every=2), 3 - first))
        assert len(read) == 3 - first
        met.append(tuple(batches.reader.corrupt))
    assert sorted(met) == [(), (str(pictures.files.path(3)),)]


def test_each_epoch_visits_every_picture_once(pictures: StreamedPictures):
    batches = training(pictures, batch_size=5)
    assert batches.per_epoch == 2
    for first in (1, 3):
        labels = torch.cat([batches.at(iteration)[1] for iteration in (first, first + 1)])
        assert sorted(labels.tolist()) == [0] * 5 + [1] * 5


def test_epochs_crop_the_same_picture_differently(pictures: StreamedPictures):
    batches = training(pictures.select([0]), batch_size=1)
    assert not torch.equal(batches.at(1)[0], batches.at(2)[0])


def test_processes_that_share_a_batch_get_the_pictures_of_one_process(pictures: StreamedPictures):
    whole, _ = training(pictures).at(2)
    parts = [training(pictures, share=(part, 2)).at(2)[0] for part in range(2)]
    assert torch.equal(torch.stack(parts, dim=1).flatten(0, 1), whole)


def test_channels_last_changes_the_memory_format_and_no_value(pictures: StreamedPictures):
    plain, _ = training(pictures).at(1)
    strided, _ = training(pictures, channels_last=True).at(1)
    assert plain.is_contiguous()
    assert strided.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain, strided)


def test_evaluation_gives_normalized_center_crops_in_order(pictures: StreamedPictures):
    batches = pictures.evaluation_batches(IMAGENET_NORMALIZATION, batch_size=4)
    assert len(batches) == 3
    crops = [
        center_crop(open_picture(pictures.files.path(index)), resize=16, size=14).permute(2, 0, 1)
        for index in range(10)
    ]
    for _ in range(2):
        inputs, labels = zip(*batches, strict=True)
        assert [len(part) for part in labels] == [4, 4, 2]
        assert torch.equal(torch.cat(labels), pictures.labels)
        assert torch.equal(torch.cat(inputs), IMAGENET_NORMALIZATION(torch.stack(crops)))


def test_reading_leaves_the_global_generator_alone(pictures: StreamedPictures):
    before = torch.get_rng_state()
    next(training(pictures).starting_after(0))
    next(iter(pictures.evaluation_batches(IMAGENET_NORMALIZATION, batch_size=4)))
    assert torch.equal(torch.get_rng_state(), before)


def test_corrupt_pictures_are_replaced_by_the_next_of_their_class_named_and_counted(
    pictures: StreamedPictures,
):
    for index in (3, 4, 9):
        pictures.files.path(index).write_bytes(b"not a picture")
    batches = pictures.evaluation_batches(IMAGENET_NORMALIZATION, batch_size=10)
    with pytest.warns(DataWarning, match=f"corrupt picture {pictures.files.path(3)}") as caught:
        inputs, labels = next(iter(batches))
    assert len(caught) == 1
    assert torch.equal(inputs[3], inputs[0])
    assert torch.equal(inputs[4], inputs[0])
    assert torch.equal(inputs[9], inputs[5])
    assert torch.equal(labels, pictures.labels)
    assert tuple(batches.reader.corrupt) == tuple(str(pictures.files.path(index)) for index in (3, 4, 9))


def test_a_corrupt_picture_met_by_a_worker_is_counted_here(pictures: StreamedPictures):
    pictures.files.path(0).write_bytes(b"")
    batches = training(pictures, batch_size=10, workers=1)
    with pytest.warns(DataWarning):
        next(batches.starting_after(0))
    assert tuple(batches.reader.corrupt) == (str(pictures.files.path(0)),)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_picture_of_no_known_range_is_refused_in_one_line(pictures: StreamedPictures, workers: int):
    deep = Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32))
    deep.save(pictures.files.path(3), format="TIFF")
    batches = training(pictures, batch_size=10, workers=workers)
    with pytest.raises(DataError, match=r"got floating-point pixels .*3\.png") as caught:
        next(batches.starting_after(0))
    assert "\n" not in str(caught.value)


def test_a_class_of_which_no_picture_can_be_read_is_an_error_with_their_number(pictures: StreamedPictures):
    for index in range(5):
        pictures.files.path(index).unlink()
    message = (
        f"5 of 5 pictures of class 'a' were tried .* first is {pictures.files.path(2)}; check that the disk"
    )
    with pytest.raises(DataError, match=message):
        next(
            iter(pictures.select([2, 3, 4, 0, 1, 5]).evaluation_batches(IMAGENET_NORMALIZATION, batch_size=1))
        )


def test_not_all_pictures_of_a_disk_that_has_gone_are_tried(tmp_path: Path):
    write_pictures(tmp_path / "a", 101)
    pictures = StreamedPictures(find_pictures(tmp_path), size=14)
    for index in range(101):
        pictures.files.path(index).unlink()
    with pytest.raises(DataError, match="100 of 101 pictures of class 'a' were tried"):
        next(iter(pictures.evaluation_batches(IMAGENET_NORMALIZATION, batch_size=1)))


def test_an_evaluation_batch_of_no_pictures_is_refused(pictures: StreamedPictures):
    with pytest.raises(DataError, match="at least 1, got 0"):
        pictures.evaluation_batches(IMAGENET_NORMALIZATION, batch_size=0)
