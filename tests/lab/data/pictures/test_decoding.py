import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pfge.lab.data.base import DataError
from pfge.lab.data.pictures import center_crop, open_picture, random_box, random_resized_crop


def picture_of(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(pixels.astype(np.uint8))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_centre_crop_without_resizing_is_the_middle_of_the_pixels():
    pixels = np.random.default_rng(0).integers(256, size=(8, 12, 3))
    crop = center_crop(picture_of(pixels), resize=8, size=4)
    assert np.array_equal(crop.numpy(), pixels[2:6, 4:8])


@pytest.mark.parametrize(("width", "height"), [(100, 40), (40, 100), (7, 5), (333, 500), (1, 1)])
def test_a_centre_crop_has_the_asked_size(width: int, height: int):
    picture = picture_of(np.zeros((height, width, 3)))
    assert center_crop(picture, resize=37, size=32).shape == (32, 32, 3)


def test_a_centre_crop_resizes_by_the_shorter_side():
    # Left half black, right half white; the shorter side 40 becomes 20, so 80 columns become 40.
    pixels = np.zeros((40, 80, 3))
    pixels[:, 40:] = 255
    crop = center_crop(picture_of(pixels), resize=20, size=20)
    assert (crop[:, :9] == 0).all()
    assert (crop[:, 11:] == 255).all()


def test_random_boxes_lie_inside_with_the_allowed_areas_and_aspects():
    for seed in range(200):
        left, top, right, bottom = random_box(300, 200, generator(seed))
        assert 0 <= left < right <= 300
        assert 0 <= top < bottom <= 200
        width, height = right - left, bottom - top
        assert 0.08 * 0.97 <= width * height / 60_000 <= 1
        assert 3 / 4 * 0.97 <= width / height <= 4 / 3 * 1.03


def test_random_boxes_cover_small_and_large_areas():
    areas = [
        math.prod(np.subtract(box[2:], box[:2]))
        for box in (random_box(100, 100, generator(s)) for s in range(200))
    ]
    assert min(areas) < 1500
    assert max(areas) > 8000


@pytest.mark.parametrize(
    ("width", "height", "box"), [(1000, 3, (498, 0, 502, 3)), (3, 1000, (0, 498, 3, 502))]
)
def test_a_very_long_picture_gives_the_largest_part_in_its_middle(
    width: int, height: int, box: tuple[int, ...]
):
    assert random_box(width, height, generator(0)) == box


def test_a_random_crop_depends_on_the_generator_alone():
    picture = picture_of(np.random.default_rng(0).integers(256, size=(30, 40, 3)))
    one, same, other = (random_resized_crop(picture, size=8, generator=generator(s)) for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_half_of_the_random_crops_are_mirrored():
    # Brightness rises to the right, so a mirrored crop is brighter on its left.
    picture = picture_of(np.broadcast_to(np.arange(200)[None, :, None], (200, 200, 3)))
    crops = [random_resized_crop(picture, size=8, generator=generator(s)).int() for s in range(100)]
    mirrored = sum(bool(crop[0, 0, 0] > crop[0, -1, 0]) for crop in crops)
    assert 35 <= mirrored <= 65


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str):
    path = tmp_path / ("file.tif" if mode == "CMYK" else "file.png")
    Image.new("RGB", (4, 3), (255, 255, 255)).convert(mode).save(path)
    picture = open_picture(path)
    assert picture.mode == "RGB"
    assert picture.getpixel((0, 0)) == (255, 255, 255)


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path: Path):
    Image.new("P", (4, 3)).save(tmp_path / "file.png", transparency=b"\x00\x80")
    assert open_picture(tmp_path / "file.png").size == (4, 3)


def test_a_truncated_picture_fails_when_it_is_opened(tmp_path: Path):
    path = tmp_path / "file.png"
    picture_of(np.random.default_rng(0).integers(256, size=(30, 40, 3))).save(path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(OSError, match="truncated"):
        open_picture(path)


def test_a_picture_that_is_almost_a_line_is_refused(tmp_path: Path):
    Image.new("RGB", (1, 60_000)).save(tmp_path / "line.png")
    with pytest.raises(ValueError, match="at most 50 times the shorter one, got 1 x 60000"):
        open_picture(tmp_path / "line.png")
    Image.new("RGB", (2, 100)).save(tmp_path / "long.png")
    assert open_picture(tmp_path / "long.png").size == (2, 100)


DEEP = np.array([[0, 255, 256], [32_767, 32_768, 65_535]])


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_the_high_byte_of_16_bits_is_taken(tmp_path: Path, suffix: str):
    path = tmp_path / f"file.{suffix}"
    Image.fromarray(DEEP.astype(np.uint16)).save(path)
    assert np.array_equal(np.asarray(open_picture(path))[..., 0], DEEP // 256)


@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
def test_the_order_of_the_two_bytes_does_not_matter(tmp_path: Path, compression: str | None):
    picture = Image.frombytes("I;16B", (3, 2), DEEP.astype(">u2").tobytes())
    picture.save(tmp_path / "file.tif", compression=compression)
    assert np.array_equal(np.asarray(open_picture(tmp_path / "file.tif"))[..., 0], DEEP // 256)


def test_32_bits_that_hold_8_are_taken_as_they_are(tmp_path: Path):
    Image.fromarray(np.array([[0, 1, 255]], dtype=np.int32)).save(tmp_path / "file.tif")
    assert np.asarray(open_picture(tmp_path / "file.tif"))[0, :, 0].tolist() == [0, 1, 255]


def test_a_dark_picture_of_16_bits_stays_dark(tmp_path: Path):
    Image.fromarray(np.array([[0, 1, 255]], dtype=np.uint16)).save(tmp_path / "file.tif")
    assert np.asarray(open_picture(tmp_path / "file.tif"))[0, :, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("pixels", "got"),
    [
        (np.array([[0, 70_000]], dtype=np.int32), "32-bit pixels from 0 to 70000"),
        (np.array([[-1, 200]], dtype=np.int32), "32-bit pixels from -1 to 200"),
        (np.array([[0, 0.5]], dtype=np.float32), "floating-point pixels from 0 to 0.5"),
    ],
)
def test_pixels_of_no_known_range_are_refused(tmp_path: Path, pixels: np.ndarray, got: str):
    Image.fromarray(pixels).save(tmp_path / "file.tif")
    with pytest.raises(DataError, match=f"8 or 16 bits .*, got {got} in {tmp_path}/file.tif; save it with 8"):
        open_picture(tmp_path / "file.tif")
