from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pfge.lab.data.base import IMAGENET_NORMALIZATION, DataError, DataWarning, Normalization
from pfge.lab.data.in_memory import ImageSet
from pfge.lab.data.pictures import (
    StreamedPictures,
    center_crop,
    find_pictures,
    load_folders,
    open_picture,
    read_pictures,
    stream_folders,
    stream_imagenet,
)
from tests.lab.data.made import write_pictures


def test_pictures_are_read_resized_and_cropped_to_the_size(tmp_path: Path):
    write_pictures(tmp_path / "a", 2)
    write_pictures(tmp_path / "b", 1, seed=1)
    files = find_pictures(tmp_path)
    data = read_pictures(files, size=8)
    assert data.images.shape == (3, 3, 8, 8)
    assert data.labels.tolist() == [0, 0, 1]
    expected = center_crop(open_picture(files.path(2)), resize=8, size=8).permute(2, 0, 1)
    assert torch.equal(data.images[2], expected)


def test_a_corrupt_picture_is_left_out_named_and_counted(tmp_path: Path):
    write_pictures(tmp_path / "a", 3)
    (tmp_path / "a" / "1.png").write_bytes(b"not a picture")
    with pytest.warns(
        DataWarning, match=rf"left out 1 of 3 pictures in {tmp_path}.*{tmp_path / 'a' / '1.png'}"
    ):
        data = read_pictures(find_pictures(tmp_path), size=8)
    assert len(data) == 2


def test_pictures_of_which_none_can_be_read_are_an_error(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").touch()
    with pytest.raises(DataError, match="none of the 1 pictures"):
        read_pictures(find_pictures(tmp_path), size=8)


def test_a_picture_of_no_known_range_is_refused_and_not_left_out(tmp_path: Path):
    write_pictures(tmp_path / "a", 2)
    Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)).save(tmp_path / "a" / "float.tif")
    with pytest.raises(DataError, match="got floating-point pixels"):
        read_pictures(find_pictures(tmp_path), size=8)


def test_train_val_and_test_folders_are_the_three_parts(tmp_path: Path):
    for part, count in (("train", 3), ("val", 2), ("test", 1)):
        write_pictures(tmp_path / part / "a", count)
    splits = load_folders(tmp_path, size=8)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (3, 2, 1)
    assert isinstance(splits.train, ImageSet)
    assert splits.normalization == Normalization.measure(splits.train.images)


@pytest.mark.parametrize("other", ["val", "test"])
def test_a_single_other_folder_is_the_test_part(tmp_path: Path, other: str):
    write_pictures(tmp_path / "train" / "a", 3)
    write_pictures(tmp_path / other / "a", 2)
    splits = load_folders(tmp_path, size=8)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (3, 0, 2)


def test_class_folders_alone_give_a_fixed_fifth_to_the_test_part(tmp_path: Path):
    write_pictures(tmp_path / "a", 10)
    write_pictures(tmp_path / "b", 5, seed=1)
    splits = load_folders(tmp_path, size=8)
    assert torch.bincount(splits.train.labels).tolist() == [8, 4]
    assert torch.bincount(splits.test.labels).tolist() == [2, 1]


@pytest.mark.parametrize(
    "parts", [("Testing", "Training"), ("Train", "test"), ("test", "train", "validation")], ids="/".join
)
@pytest.mark.parametrize("load", [load_folders, stream_folders])
def test_parts_of_other_names_are_refused(tmp_path: Path, parts: tuple[str, ...], load: Any):
    for part in parts:
        write_pictures(tmp_path / part / "a", 1)
    message = rf"must be called train, val and test, got {', '.join(parts)}; rename them"
    with pytest.raises(DataError, match=message):
        load(tmp_path, size=8)


def test_a_class_may_be_called_as_a_part(tmp_path: Path):
    for name in ("valid", "invalid"):
        write_pictures(tmp_path / name, 5)
    assert load_folders(tmp_path, size=8).train.class_names == ("invalid", "valid")


def test_a_train_folder_without_another_is_refused(tmp_path: Path):
    write_pictures(tmp_path / "train" / "a", 1)
    with pytest.raises(DataError, match="must have a val or test folder beside it"):
        load_folders(tmp_path, size=8)


def test_a_class_that_val_lacks_is_named(tmp_path: Path):
    for folder in ("train/a", "train/b", "val/a"):
        write_pictures(tmp_path / folder, 1)
    with pytest.raises(DataError, match=r"val lacks 1 class folders .*: b;"):
        load_folders(tmp_path, size=8)


def test_streamed_folders_read_nothing_until_a_batch_is_asked_for(tmp_path: Path):
    for part in ("train", "val"):
        (tmp_path / part / "a").mkdir(parents=True)
        (tmp_path / part / "a" / "1.png").write_bytes(b"not a picture")
    splits = stream_folders(tmp_path, size=8)
    assert (len(splits.train), len(splits.test)) == (1, 1)
    assert splits.normalization == IMAGENET_NORMALIZATION


@pytest.mark.parametrize("folder", ["imagenet", "ILSVRC2012", "."])
def test_imagenet_is_tested_on_its_val_folder(tmp_path: Path, folder: str):
    write_pictures(tmp_path / folder / "train" / "n01440764", 2)
    write_pictures(tmp_path / folder / "val" / "n01440764", 1)
    (tmp_path / folder / "test").mkdir()
    splits = stream_imagenet(tmp_path, size=224)
    assert isinstance(splits.test, StreamedPictures)
    assert splits.test.files.path(0) == tmp_path / folder / "val" / "n01440764" / "0.png"
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (2, 0, 1)


def test_missing_imagenet_is_reported_with_the_searched_folders(tmp_path: Path):
    with pytest.raises(DataError, match=f"imagenet was not found: .* in {tmp_path / 'imagenet'}, "):
        stream_imagenet(tmp_path, size=224)
