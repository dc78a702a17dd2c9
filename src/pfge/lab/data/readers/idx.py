"""MNIST and Fashion-MNIST from their idx files, plain or gzipped."""

import gzip
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from pfge.lab.data.base import DataError, Normalization
from pfge.lab.data.in_memory import ImageSet
from pfge.lab.data.readers.download import check_md5, fetch
from pfge.storage.files import DATA_LIMIT, open_regular, read_bounded

_UINT8 = 0x08


@dataclass(frozen=True)
class IdxData:
    """One of the data sets.

    Attributes:
        name: What users call it.
        folders: Where it may be below the data root; the first is where downloads go.
        url: The folder of the site that has the gzipped files.
        md5: The published md5 of each gzipped file.
        class_names: What each class number stands for.
        normalization: The statistics of the training images.
    """

    name: str
    folders: tuple[str, ...]
    url: str
    md5: dict[str, str]
    class_names: tuple[str, ...]
    normalization: Normalization


def _of_files(*md5: str) -> dict[str, str]:
    """Return the md5 of each file; all data sets in this format have the same four."""
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return {f"{part}-ubyte": value for part, value in zip(parts, md5, strict=True)}


MNIST = IdxData(
    name="mnist",
    folders=("mnist", "MNIST/raw"),
    url="https://ossci-datasets.s3.amazonaws.com/mnist",
    md5=_of_files(
        *("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432"),
        *("9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    class_names=tuple("0123456789"),
    normalization=Normalization((0.1307,), (0.3081,)),
)

FASHION_MNIST = IdxData(
    name="fashion-mnist",
    folders=("fashion-mnist", "FashionMNIST/raw"),
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    md5=_of_files(
        *("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe"),
        *("bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    class_names=(
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    normalization=Normalization((0.2860,), (0.3530,)),
)


def load_idx(
    data: IdxData, root: Path, *, download: bool = False, verify: bool = True
) -> tuple[ImageSet, ImageSet]:
    """Return all training and all test images.

    Args:
        data: `MNIST` or `FASHION_MNIST`.
        root: The folder that holds the data set's folder, or that folder itself.
        download: Whether to fetch files that are not there.
        verify: Whether gzipped files must have their published md5; none is published for plain ones.
    """
    places = [*(root / folder for folder in data.folders), root]
    files = {name: _find(data, name, places, download) for name in data.md5}
    if verify:
        for name, path in files.items():
            if path.suffix == ".gz":
                check_md5(path, data.md5[name])
    train_images, train_labels, test_images, test_labels = (read_idx(path) for path in files.values())
    return _image_set(data, train_images, train_labels), _image_set(data, test_images, test_labels)


def read_idx(path: Path) -> Tensor:
    """Return the uint8 tensor in an idx file.

    The file starts with two zero bytes, the code of the element type and the number of dimensions;
    then come the sizes as big-endian 32-bit numbers, and the elements.
    """
    raw = _read(path)
    dimensions = raw[3] if len(raw) > 3 else 0
    start = 4 + 4 * dimensions
    if raw[:3] != bytes((0, 0, _UINT8)) or not dimensions or len(raw) < start:
        raise DataError(
            f"{path} must start as an idx file of bytes (00 00 08 and the number of dimensions), "
            f"found {raw[:4].hex(' ') or 'nothing'}; delete it and fetch it again (--download)"
        )
    shape = [int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4)]
    if len(raw) - start != prod(shape):
        raise DataError(
            f"{path} must have {prod(shape)} bytes for the shape {shape}, found {len(raw) - start}; "
            "it is truncated or damaged: delete it and fetch it again (--download)"
        )
    return torch.frombuffer(bytearray(raw[start:]), dtype=torch.uint8).view(shape)


def _read(path: Path) -> bytes:
    if path.suffix != ".gz":
        return read_bounded(path, DATA_LIMIT)
    try:
        with open_regular(path) as opened, gzip.open(opened) as file:
            data = file.read(DATA_LIMIT + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} must be a whole gzip file: {error}; delete it and fetch it again (--download)"
        ) from error
    if len(data) > DATA_LIMIT:
        raise DataError(
            f"{path} must hold at most {DATA_LIMIT:,} bytes, but holds more; it may be another file"
        )
    return data


def _find(data: IdxData, name: str, places: list[Path], download: bool) -> Path:
    for place in places:
        for path in (place / name, place / f"{name}.gz"):
            if path.is_file():
                return path
    if not download:
        raise DataError(
            f"{data.name} was not found: no {name} or {name}.gz in {', '.join(map(str, places))}; "
            "use --download, or put the files there"
        )
    target = places[0] / f"{name}.gz"
    fetch(f"{data.url}/{target.name}", target, data.md5[name])
    return target


def _image_set(data: IdxData, images: Tensor, labels: Tensor) -> ImageSet:
    if images.ndim != 3 or labels.ndim != 1:
        raise DataError(
            f"{data.name} must have images [N, H, W] and labels [N], "
            f"got {list(images.shape)} and {list(labels.shape)}; check that no files were exchanged"
        )
    try:
        return ImageSet(images[:, None], labels.long(), data.class_names)
    except DataError as error:
        raise DataError(f"{data.name}: {error}") from error
