import pytest
import torch

from pfge.lab.data.base import DataError, Normalization
from pfge.lab.data.in_memory import ImageSet
from tests.lab.data.made import CLASSES, random_images


def test_selecting_keeps_the_asked_order():
    data = random_images(5)
    chosen = data.select([4, 1])
    assert len(chosen) == 2
    assert torch.equal(chosen.images, data.images[[4, 1]])
    assert chosen.labels.tolist() == [1, 1]


def test_selecting_nothing_gives_an_empty_set():
    assert len(random_images(5).select([])) == 0


def test_moving_to_the_same_device_copies_nothing():
    data = random_images(2)
    assert data.to("cpu").images.data_ptr() == data.images.data_ptr()


def test_a_label_past_the_last_class_is_named_with_its_image():
    images = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    with pytest.raises(DataError, match=r"0\.\.2 for 3 classes, got 3 at image 1 \(1 such\)"):
        ImageSet(images, torch.tensor([0, 3, 2]), CLASSES)


def test_a_negative_label_is_refused():
    with pytest.raises(DataError, match="got -1 at image 0"):
        ImageSet(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.tensor([-1]), CLASSES)


def test_images_that_are_not_uint8_are_refused():
    with pytest.raises(DataError, match=r"must be uint8 .* got torch.float32 \[1, 1, 2, 2\]"):
        ImageSet(torch.zeros(1, 1, 2, 2), torch.tensor([0]), CLASSES)


def test_labels_that_are_not_int64_are_refused():
    with pytest.raises(DataError, match=r"must be int64 \[N\], got torch.float32"):
        ImageSet(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.tensor([0.0]), CLASSES)


def test_a_different_number_of_labels_and_images_is_refused():
    with pytest.raises(DataError, match="got 2 images and 1 labels"):
        ImageSet(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0]), CLASSES)


def test_normalization_subtracts_the_mean_and_divides_by_the_std():
    # (255 / 255 - 0.5) / 0.25 = 2 and (0 / 255 - 0.2) / 0.1 = -2
    pixels = torch.tensor([255, 0], dtype=torch.uint8).view(1, 2, 1, 1)
    normalized = Normalization((0.5, 0.2), (0.25, 0.1))(pixels)
    torch.testing.assert_close(normalized.flatten(), torch.tensor([2.0, -2.0]))


def test_measured_statistics_are_those_of_the_scaled_pixels():
    data = random_images(20)
    scaled = data.images.double() / 255
    measured = Normalization.measure(data.images)
    assert measured.mean == pytest.approx(scaled.mean((0, 2, 3)).tolist())
    assert measured.std == pytest.approx(scaled.std((0, 2, 3), correction=0).tolist())


def test_a_constant_channel_is_measured_with_std_one():
    assert Normalization.measure(torch.full((2, 1, 2, 2), 51, dtype=torch.uint8)).std == (1.0,)


def test_a_std_of_zero_is_refused():
    with pytest.raises(DataError, match="std must be positive"):
        Normalization((0.5,), (0.0,))


@pytest.mark.parametrize(("mean", "std"), [(125.3, 0.25), (0.5, 63.0), (-0.1, 0.25)])
def test_a_normalization_of_pixels_up_to_255_is_refused(mean: float, std: float):
    message = rf"are of pixels from 0 to 1, got \({mean},\) and \({std},\); divide them by 255"
    with pytest.raises(DataError, match=message):
        Normalization((mean,), (std,))


def test_a_normalization_for_other_channels_is_refused():
    with pytest.raises(DataError, match="1 channels, the images 3"):
        Normalization((0.5,), (0.5,))(random_images(1).images)
