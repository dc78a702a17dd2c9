from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import Tensor

from pfge.lab.data import DataError
from pfge.lab.evaluation.corruptions import CORRUPTIONS, STRENGTHS, corrupt
from tests.lab.data.made import random_images

every_corruption = pytest.mark.parametrize("name", CORRUPTIONS)


def smooth_images(count: int = 4, channels: int = 3, size: int = 32) -> Tensor:
    """Random images whose neighboring pixels are alike, as in photographs, from 40 to 215."""
    noise = np.random.default_rng(0).normal(size=(count, channels, size, size))
    waves = gaussian_filter(noise, sigma=(0, 0, 2, 2), mode="wrap")
    low, high = waves.min(), waves.max()
    return torch.from_numpy((40 + 175 * (waves - low) / (high - low)).astype(np.uint8))


def gray(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.uint8)[None, None]


def color(red: int, green: int, blue: int) -> Tensor:
    return torch.tensor([red, green, blue], dtype=torch.uint8).view(1, 3, 1, 1)


def mean_squared_error(first: Tensor, second: Tensor) -> float:
    return (first.double() - second.double()).square().mean().item()


def test_brightness_scales_a_colour_so_that_its_largest_channel_has_the_added_value() -> None:
    # Value 100 becomes 100 + 0.2 * 255 = 151, and the other channels grow by the same factor of 1.51.
    assert torch.equal(corrupt(color(100, 50, 0), "brightness", 4, seed=0), color(151, 76, 0))
    # 220 + 0.3 * 255 is over 255: a factor of 255 / 220, so 100 becomes 115.9.
    assert torch.equal(corrupt(color(220, 100, 220), "brightness", 5, seed=0), color(255, 116, 255))


def test_brightness_makes_black_grey() -> None:
    # 0.15 * 255 = 38.25
    assert torch.equal(corrupt(color(0, 0, 0), "brightness", 3, seed=0), color(38, 38, 38))
    assert corrupt(gray([[0, 200], [250, 10]]), "brightness", 3, seed=0).tolist() == [
        [[[38, 238], [255, 48]]]
    ]


def test_contrast_draws_each_channel_towards_its_own_mean() -> None:
    # The mean is 100 and half of each distance stays.
    image = gray([[0, 200], [80, 120]])
    assert corrupt(image, "contrast", 2, seed=0).tolist() == [[[[50, 150], [90, 110]]]]
    # Another channel, of mean 10, and another image, of mean 250, have their own.
    constant = torch.full_like(image, 10)
    both = corrupt(torch.cat((image, constant), dim=1), "contrast", 2, seed=0)
    assert both.tolist() == [[[[50, 150], [90, 110]], [[10, 10], [10, 10]]]]


def test_pixelation_replaces_pixels_by_the_mean_of_their_cell() -> None:
    # 0.65 * 4 pixels are 2 cells a side.
    image = gray([[0, 4, 10, 10], [8, 12, 10, 14], [100, 100, 1, 2], [100, 100, 3, 6]])
    expected = [[6, 6, 11, 11], [6, 6, 11, 11], [100, 100, 3, 3], [100, 100, 3, 3]]
    assert corrupt(image, "pixelation", 5, seed=0)[0, 0].tolist() == expected


@pytest.mark.parametrize("strength", STRENGTHS)
# Even sizes: in odd ones a pixel's center can lie on the border of two cells, and Pillow takes it into the
# mean of one and shows it in the other.
@pytest.mark.parametrize(("height", "width"), [(32, 32), (28, 40), (48, 224)])
def test_pixelation_agrees_with_pillow_resizing_down_and_up(strength: int, height: int, width: int) -> None:
    images = random_images(2, height=height, width=width).images
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[strength - 1]
    for before, after in zip(images, corrupt(images, "pixelation", strength, seed=0), strict=True):
        picture = Image.fromarray(before.permute(1, 2, 0).numpy())
        small = picture.resize((int(share * width), int(share * height)), Image.Resampling.BOX)
        expected = np.array(small.resize(picture.size, Image.Resampling.BOX)).astype(int)
        # Pillow rounds after every pass, so it can be off by one.
        assert np.abs(after.permute(1, 2, 0).numpy() - expected).max() <= 1


@pytest.mark.parametrize("strength", STRENGTHS)
def test_blur_agrees_with_scipy(strength: int) -> None:
    images = random_images(3, height=32, width=40).images
    sigma = (0.4, 0.6, 0.7, 0.8, 1.0)[strength - 1]
    blurred = gaussian_filter(images.double().numpy(), sigma=(0, 0, sigma, sigma), mode="nearest")
    assert np.array_equal(corrupt(images, "blur", strength, seed=0).numpy(), blurred.round())


def test_blur_is_wider_in_larger_images_in_proportion() -> None:
    images = random_images(1, height=80, width=64).images
    blurred = gaussian_filter(images.double().numpy(), sigma=(0, 0, 2, 2), mode="nearest")
    assert np.array_equal(corrupt(images, "blur", 5, seed=0).numpy(), blurred.round())


def test_blur_is_no_narrower_in_smaller_images() -> None:
    images = random_images(1, height=8, width=8).images
    blurred = gaussian_filter(images.double().numpy(), sigma=(0, 0, 1, 1), mode="nearest")
    assert np.array_equal(corrupt(images, "blur", 5, seed=0).numpy(), blurred.round())


def test_blur_keeps_the_mean_of_what_does_not_touch_the_edge() -> None:
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    images[:, :, 8:24, 8:24] = random_images(2, height=16, width=16).images
    blurred = corrupt(images, "blur", 5, seed=0)
    assert not torch.equal(blurred, images)
    # Rounding errors have a standard deviation of 0.29, so that of their mean over 2 x 3 x 24 x 24 is 0.005.
    assert blurred.double().mean().item() == pytest.approx(images.double().mean().item(), abs=0.02)


@pytest.mark.parametrize("name", ["blur", "contrast", "pixelation"])
@pytest.mark.parametrize("strength", STRENGTHS)
def test_a_constant_image_stays_constant(name: str, strength: int) -> None:
    images = torch.arange(256, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 7, 9)
    assert torch.equal(corrupt(images, name, strength, seed=0), images)


@pytest.mark.parametrize("strength", STRENGTHS)
def test_noise_has_the_stated_standard_deviation(strength: int) -> None:
    images = torch.full((60, 3, 32, 32), 128, dtype=torch.uint8)
    sigma = (0.04, 0.06, 0.08, 0.09, 0.10)[strength - 1] * 255
    noise = corrupt(images, "noise", strength, seed=0).double() - 128
    # 184,320 values: the standard deviation is known to 0.17 % and the mean to 0.0024 of it. Rounding
    # adds a variance of 1/12.
    assert noise.std().item() == pytest.approx((sigma**2 + 1 / 12) ** 0.5, rel=0.007)
    assert noise.mean().item() == pytest.approx(0, abs=0.01 * sigma)


def test_noise_depends_on_the_seed_and_differs_from_image_to_image() -> None:
    images = torch.full((2, 1, 8, 8), 128, dtype=torch.uint8)
    one, other = corrupt(images, "noise", 3, seed=0), corrupt(images, "noise", 3, seed=1)
    assert torch.equal(one, corrupt(images, "noise", 3, seed=0))
    assert not torch.equal(one, other)
    assert not torch.equal(one[0], one[1])


@every_corruption
def test_images_corrupted_part_by_part_are_the_same(name: str) -> None:
    images = random_images(70, height=9, width=8).images
    whole = corrupt(images, name, 3, seed=5)
    for part in ([0], [3, 4, 5], list(range(1, 70)), [69, 2]):
        alone = corrupt(images[part], name, 3, seed=5, positions=part)
        assert torch.equal(alone, whole[part])


@every_corruption
def test_no_number_is_taken_from_the_global_stream(name: str) -> None:
    before = torch.get_rng_state()
    corrupt(smooth_images(1), name, 2, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_what_pillow_writes_and_reads(channels: int) -> None:
    images = smooth_images(2, channels, size=20)[:, :, :17]
    for strength, quality in zip(STRENGTHS, (80, 65, 58, 50, 40), strict=True):
        result = corrupt(images, "jpeg", strength, seed=0)
        for before, after in zip(images, result, strict=True):
            picture = Image.fromarray(before.permute(1, 2, 0).numpy().squeeze())
            file = BytesIO()
            picture.save(file, format="JPEG", quality=quality)
            expected = np.array(Image.open(BytesIO(file.getvalue())))
            assert np.array_equal(after.permute(1, 2, 0).numpy().squeeze(), expected)


@every_corruption
@pytest.mark.parametrize("channels", [1, 3])
def test_each_strength_changes_more_than_the_one_before(name: str, channels: int) -> None:
    images = smooth_images(channels=channels)
    before = images.clone()
    changes = [mean_squared_error(corrupt(images, name, each, seed=0), images) for each in STRENGTHS]
    assert 0 < changes[0] < changes[1] < changes[2] < changes[3] < changes[4]
    assert torch.equal(images, before)


@every_corruption
def test_the_result_is_uint8_of_the_same_shape(name: str) -> None:
    for count in (0, 2):
        images = random_images(count, channels=1, height=5, width=7).images
        result = corrupt(images, name, 5, seed=0)
        assert (result.dtype, result.shape) == (torch.uint8, images.shape)


@pytest.mark.parametrize("strength", [0, 6])
def test_a_strength_out_of_range_is_refused(strength: int) -> None:
    with pytest.raises(DataError, match=f"strength must be from 1 to 5, got {strength}"):
        corrupt(smooth_images(1), "blur", strength, seed=0)


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(
        DataError, match=r"unknown corruption 'Brigthness'; did you mean 'brightness'\? Allowed: noise"
    ):
        corrupt(smooth_images(1), "Brigthness", 1, seed=0)
    with pytest.raises(DataError, match="unknown corruption 'fog'; Allowed: noise, blur"):
        corrupt(smooth_images(1), "fog", 1, seed=0)


def test_what_are_no_pixels_is_refused() -> None:
    with pytest.raises(DataError, match=r"uint8 \[N, C, H, W\], got torch.float32 \[1, 3, 32, 32\]; corrupt"):
        corrupt(smooth_images(1).float(), "blur", 1, seed=0)
    with pytest.raises(DataError, match=r"got torch.uint8 \[3, 32, 32\]"):
        corrupt(smooth_images(1)[0], "blur", 1, seed=0)


def test_positions_that_do_not_fit_the_images_are_refused() -> None:
    with pytest.raises(DataError, match="every image needs a position, got 3 for 2 images"):
        corrupt(smooth_images(2), "noise", 1, seed=0, positions=[0, 1, 2])


def test_jpeg_of_four_channels_is_refused() -> None:
    with pytest.raises(DataError, match="JPEG images must have 1 or 3 channels, got 4; use another"):
        corrupt(smooth_images(1, channels=4), "jpeg", 1, seed=0)
