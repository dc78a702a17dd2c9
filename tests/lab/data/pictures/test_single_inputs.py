from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pfge.lab.data import DataError, Normalization
from pfge.lab.data.single_inputs import read_picture_inputs


def data(channels: int, height: int, width: int) -> tuple[Normalization, torch.Size]:
    normalization = Normalization((0.0,) * channels, (1.0,) * channels)
    return normalization, torch.Size((channels, height, width))


def test_a_wide_picture_keeps_the_shape_of_wide_data(tmp_path: Path) -> None:
    pixels = torch.arange(4 * 8 * 3, dtype=torch.uint8).view(4, 8, 3)
    Image.fromarray(pixels.numpy()).save(tmp_path / "p.png")
    found = read_picture_inputs(tmp_path / "p.png", *data(3, 4, 8))
    torch.testing.assert_close(found, pixels.permute(2, 0, 1) / 255)


def test_the_middle_of_a_long_picture_is_taken(tmp_path: Path) -> None:
    pixels = torch.zeros(4, 12, 3, dtype=torch.uint8)
    pixels[:, 4:8] = 255
    Image.fromarray(pixels.numpy()).save(tmp_path / "p.png")
    assert read_picture_inputs(tmp_path / "p.png", *data(3, 4, 4)).tolist() == torch.ones(3, 4, 4).tolist()


def test_colours_become_grey_as_in_pillow(tmp_path: Path) -> None:
    pixels = torch.randint(256, (8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    picture = Image.fromarray(pixels.numpy())
    picture.save(tmp_path / "p.png")
    expected = torch.frombuffer(bytearray(picture.convert("L").tobytes()), dtype=torch.uint8).view(1, 8, 8)
    found = read_picture_inputs(tmp_path / "p.png", *data(1, 8, 8))
    assert (found * 255 - expected).abs().max() < 1.01  # one of them rounds, the other cuts off


def test_data_of_other_channels_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "p.png")
    with pytest.raises(DataError, match="3 channels, or 1 if they are gray, and the data has 4"):
        read_picture_inputs(tmp_path / "p.png", *data(4, 4, 4))


def test_a_picture_loses_its_border_if_it_is_made_larger_first(tmp_path: Path) -> None:
    pixels = torch.zeros(8, 8, 3, dtype=torch.uint8)
    pixels[2:6, 2:6] = 255
    Image.fromarray(pixels.numpy()).save(tmp_path / "p.png")
    found = read_picture_inputs(tmp_path / "p.png", *data(3, 4, 4), resize=8)
    assert found.tolist() == torch.ones(3, 4, 4).tolist()


def test_a_picture_of_no_known_range_is_refused_with_the_reason(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)).save(tmp_path / "p.tif")
    with pytest.raises(DataError, match="got floating-point pixels"):
        read_picture_inputs(tmp_path / "p.tif", *data(3, 4, 4))


def test_pictures_for_other_inputs_than_pictures_are_refused(tmp_path: Path) -> None:
    normalization, _ = data(1, 8, 8)
    with pytest.raises(DataError, match=r"pictures are inputs \[C, H, W\], and the ensemble takes \[64\]"):
        read_picture_inputs(tmp_path / "p.png", normalization, (64,))


def test_a_picture_that_would_take_gigabytes_once_it_is_resized_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "p.png")
    normalization, shape = data(3, 8, 8)
    with pytest.raises(DataError, match="at most 67,108,864 pixels once it is resized, got 30000 x 30000"):
        read_picture_inputs(tmp_path / "p.png", normalization, shape, resize=30_000)
