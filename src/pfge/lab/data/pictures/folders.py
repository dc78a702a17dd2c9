"""Data sets that are folders of class folders, read into memory or streamed."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from pfge.lab.data.in_memory.image_set import (
    IMAGENET_NORMALIZATION,
    DataError,
    DataWarning,
    ImageSet,
    Normalization,
)
from pfge.lab.data.pictures.decoding import center_crop, open_picture
from pfge.lab.data.pictures.files import PictureFiles, check_same_classes, find_pictures
from pfge.lab.data.pictures.streaming import StreamedPictures
from pfge.lab.data.splits import Splits, stratified

_SPLIT_SEED = 0
_NAMED = 5
_PARTS = ("train", "val", "test")
_LIKE_PARTS = (*_PARTS, "training", "valid", "validation", "testing")


def load_folders(path: Path, *, size: int) -> Splits:
    """Return the pictures of a small data set, read into memory.

    Args:
        path: A folder with `train`, and `test` or `val` or both, each with class folders; or class
            folders alone, of which a fixed fifth becomes the test set.
        size: Height and width the pictures are resized and center-cropped to.
    """
    train, validation, test = (read_pictures(files, size=size) for files in _parts(path))
    return Splits(train, validation, test, Normalization.measure(train.images))


def stream_folders(path: Path, *, size: int) -> Splits:
    """Return the pictures of a large data set, to be read when needed; see `load_folders`."""
    return _streamed(_parts(path), size)


def stream_imagenet(root: Path, *, size: int) -> Splits:
    """Return ILSVRC-2012: `train` for training, and `val`, whose labels are public, for testing."""
    places = [root / "imagenet", root / "ILSVRC2012", root]
    for place in places:
        if (place / "train").is_dir() and (place / "val").is_dir():
            train, test = find_pictures(place / "train"), find_pictures(place / "val")
            check_same_classes(train, test)
            return _streamed((train, train.select([]), test), size)
    raise DataError(
        f"imagenet was not found: no train and val folders in {', '.join(map(str, places))}; "
        "get ILSVRC-2012 from image-net.org and put its class folders there"
    )


def read_pictures(files: PictureFiles, *, size: int) -> ImageSet:
    """Return the pictures in memory; those that cannot be read are left out, with a warning."""
    with ThreadPoolExecutor() as pool:
        pixels = list(pool.map(partial(_read, files, size), range(len(files))))
    readable = [index for index, image in enumerate(pixels) if image is not None]
    corrupt = [str(files.path(index)) for index, image in enumerate(pixels) if image is None]
    if not readable and len(files) > 0:
        raise DataError(
            f"none of the {len(files)} pictures in {files.root} can be read, such as {corrupt[0]}"
        )
    if corrupt:
        more = ", ..." if len(corrupt) > _NAMED else ""
        warnings.warn(
            f"left out {len(corrupt)} of {len(files)} pictures in {files.root}, which could not be read: "
            f"{', '.join(corrupt[:_NAMED])}{more}",
            DataWarning,
            stacklevel=2,
        )
    blank = torch.empty(0, size, size, 3, dtype=torch.uint8)
    images = torch.cat([blank, *(image[None] for image in pixels if image is not None)])
    used = files.select(readable)
    channels_first = images.permute(0, 3, 1, 2).contiguous()
    return ImageSet(channels_first, used.labels, used.class_names, used.content_numbers())


def _read(files: PictureFiles, size: int, index: int) -> Tensor | None:
    try:
        picture = open_picture(files.path(index))
    except DataError:  # the file is whole, and others are likely to be like it
        raise
    except Exception:  # decoders raise many types; in each case the file is not usable
        return None
    return center_crop(picture, resize=size, size=size)


def _parts(path: Path) -> tuple[PictureFiles, PictureFiles, PictureFiles]:
    _refuse_other_names_of_parts(path)
    if not (path / "train").is_dir():
        everything = find_pictures(path)
        test, train = stratified(everything.labels, len(everything) // 5, _SPLIT_SEED)
        return everything.select(train), everything.select([]), everything.select(test)
    train_files = find_pictures(path / "train")
    others = [find_pictures(path / name) for name in ("val", "test") if (path / name).is_dir()]
    if not others:
        raise DataError(f"{path} has a train folder and must have a val or test folder beside it")
    for other in others:
        check_same_classes(train_files, other)
    return train_files, others[0] if len(others) == 2 else train_files.select([]), others[-1]


def _refuse_other_names_of_parts(path: Path) -> None:
    """Refuse parts that would be taken for classes, or not be used at all."""
    folders = [entry.name for entry in path.iterdir() if entry.is_dir()] if path.is_dir() else []
    found = sorted(name for name in folders if name.lower() in _LIKE_PARTS)
    # One alone may be a class, as "valid" beside "invalid".
    if len(found) > 1 and not set(found) <= set(_PARTS):
        raise DataError(
            f"the parts of {path} must be called train, val and test, got {', '.join(found)}; rename them"
        )


def _streamed(parts: tuple[PictureFiles, PictureFiles, PictureFiles], size: int) -> Splits:
    train, validation, test = (StreamedPictures(files, size) for files in parts)
    return Splits(train, validation, test, IMAGENET_NORMALIZATION)
