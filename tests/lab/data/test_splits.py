import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfge.lab.data.base import DataError, Normalization
from pfge.lab.data.in_memory import ImageSet
from pfge.lab.data.splits import Splits, split, stratified, take, validation_from_test
from tests.lab.data.made import random_images

NORMALIZATION = Normalization((0.5,) * 3, (0.5,) * 3)


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_a_stratified_part_is_within_one_of_its_proportion_in_each_class(
    sizes: list[int], share: float, seed: int
):
    labels = torch.cat([torch.full((size,), label) for label, size in enumerate(sizes)])
    count = round(share * len(labels))
    part, rest = stratified(labels, count, seed)
    assert len(part) == count
    assert sorted(part.tolist() + rest.tolist()) == list(range(len(labels)))
    for label, size in enumerate(sizes):
        assert abs(int((labels[part] == label).sum()) - size * count / len(labels)) < 1


def test_validation_comes_out_of_training_and_test_stays():
    train, test = random_images(30), random_images(6, seed=1)
    splits = split(train, test, NORMALIZATION, validation=6, seed=0)
    assert isinstance(splits.train, ImageSet)
    assert isinstance(splits.validation, ImageSet)
    assert splits.test is test
    assert torch.bincount(splits.validation.labels).tolist() == [2, 2, 2]
    pixels = {image.numpy().tobytes() for image in (*splits.train.images, *splits.validation.images)}
    assert pixels == {image.numpy().tobytes() for image in train.images}
    assert len(splits.train) == 24


def test_a_fraction_is_a_share_of_the_training_data():
    splits = split(random_images(30), random_images(3), NORMALIZATION, validation=0.1, seed=0)
    assert len(splits.validation) == 3


def test_no_validation_leaves_the_training_data_whole():
    train = random_images(9)
    splits = split(train, random_images(3), NORMALIZATION, validation=0, seed=0)
    assert isinstance(splits.train, ImageSet)
    assert torch.equal(splits.train.images, train.images)
    assert len(splits.validation) == 0


def test_the_seed_alone_decides_which_images_are_held_out():
    labels = torch.arange(60) % 3
    held_out = [tuple(stratified(labels, 12, seed)[0].tolist()) for seed in (0, 0, 1)]
    assert held_out[0] == held_out[1] != held_out[2]


def test_a_split_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    split(random_images(9), random_images(3), NORMALIZATION, validation=3, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("validation", [-1, 9, 10, -0.1, 0.99, 1.0])
def test_a_validation_part_that_leaves_no_training_data_is_refused(validation: float):
    with pytest.raises(DataError, match=r"from 0 to 8, or a fraction from 0\.0 to below 1\.0"):
        split(random_images(9), random_images(3), NORMALIZATION, validation=validation, seed=0)


def test_a_share_that_gives_no_validation_image_is_refused():
    with pytest.raises(DataError, match=r"0 or give at least 1 image, got 0\.01 of 9; give a larger share"):
        split(random_images(9), random_images(3), NORMALIZATION, validation=0.01, seed=0)


def test_a_test_set_is_halved_class_by_class():
    test = random_images(12)
    first, second = validation_from_test(test, seed=0)
    assert torch.bincount(first.labels).tolist() == torch.bincount(second.labels).tolist() == [2, 2, 2]
    pixels = {image.numpy().tobytes() for image in (*first.images, *second.images)}
    assert len(pixels) == 12


def test_splits_with_other_classes_are_refused():
    train = random_images(3)
    other = ImageSet(train.images, train.labels, ("x", "y", "z"))
    with pytest.raises(DataError, match="train and test must have the same classes"):
        Splits(train=train, validation=train.select([]), test=other, normalization=NORMALIZATION)


def test_a_part_of_the_data_keeps_its_classes_and_its_order():
    data = random_images(30)
    part = take(data, 6, seed=0, part="data")
    assert torch.bincount(part.labels).tolist() == [2, 2, 2]
    places = [int((data.images == image).flatten(1).all(1).nonzero()) for image in part.images]
    assert places == sorted(set(places))


def test_no_number_of_images_is_all_of_them():
    data = random_images(9)
    assert take(data, 0, seed=0, part="data") is data


@pytest.mark.parametrize("count", [-1, 10])
def test_a_part_larger_than_the_data_or_below_nothing_is_refused(count: int):
    with pytest.raises(DataError, match=rf"data has 9 images, so from 1 to 9 can be taken.*got {count}"):
        take(random_images(9), count, seed=0, part="data")


def test_numbers_that_no_item_has_change_nothing_in_a_split():
    # Recorded before classes without items were skipped.
    labels = torch.tensor([0, 4, 4, 9, 0, 9, 9, 4, 0, 9, 4, 0])
    assert stratified(labels, 5, seed=3)[0].tolist() == [2, 4, 6, 7, 11]


@pytest.mark.parametrize(
    "labels", [torch.arange(12) % 2 == 0, -(torch.arange(12) % 2), torch.arange(12) * 10**15]
)
def test_labels_of_any_whole_numbers_are_split(labels: torch.Tensor):
    part, rest = stratified(labels, 4, seed=0)
    assert sorted(part.tolist() + rest.tolist()) == list(range(12))
    if len(labels.unique()) == 2:
        assert labels[part].long().abs().sum() == 2


@pytest.mark.parametrize("validation", [float("inf"), float("nan")])
def test_a_validation_part_that_is_no_number_is_refused(validation: float):
    with pytest.raises(DataError, match="validation must be a number of images"):
        split(random_images(9), random_images(3), NORMALIZATION, validation=validation, seed=0)
