import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfge.lab.data.base import DataError
from pfge.lab.data.batches import Augmentation
from pfge.lab.data.in_memory import crop_and_flip
from tests.lab.data.in_memory.cropping import cropped_pixel_by_pixel
from tests.lab.data.made import random_images


@given(
    padding=st.integers(0, 7),
    flip=st.booleans(),
    channels=st.integers(1, 3),
    height=st.integers(1, 5),
    width=st.integers(1, 5),
    channels_last=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_a_batch_equals_the_images_done_one_pixel_at_a_time(
    padding: int, flip: bool, channels: int, height: int, width: int, channels_last: bool, seed: int
):
    images = random_images(6, channels=channels, height=height, width=width, seed=seed).images
    top, left, mirrored = Augmentation(padding, flip).draw(6, torch.Generator().manual_seed(seed))
    stored = images.permute(0, 2, 3, 1).contiguous() if channels_last else images
    got = crop_and_flip(stored, padding, top, left, mirrored, channels_last=channels_last)
    got = got.permute(0, 3, 1, 2) if channels_last else got
    expected = [
        cropped_pixel_by_pixel(image, padding, int(y), int(x), bool(flipped))
        for image, y, x, flipped in zip(images, top, left, mirrored, strict=True)
    ]
    assert torch.equal(got, torch.stack(expected))


def test_every_position_and_both_mirrorings_are_drawn():
    top, left, mirrored = Augmentation(crop_padding=1).draw(500, torch.Generator().manual_seed(0))
    drawn = set(zip(top.tolist(), left.tolist(), mirrored.tolist(), strict=True))
    assert drawn == {(y, x, m) for y in range(3) for x in range(3) for m in (False, True)}


def test_without_flip_nothing_is_mirrored():
    _, _, mirrored = Augmentation(flip=False).draw(100, torch.Generator().manual_seed(0))
    assert not mirrored.any()


def test_a_negative_padding_is_refused():
    with pytest.raises(DataError, match="crop_padding must be 0 or more pixels, got -1"):
        Augmentation(crop_padding=-1)
