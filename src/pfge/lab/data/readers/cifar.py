"""CIFAR-10 and CIFAR-100, from either official layout: binary, or pickled for Python."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfge.lab.data.in_memory.image_set import DataError, ImageSet
from pfge.lab.data.readers.cifar_files import Cifar, CifarFile, CifarLayout
from pfge.lab.data.readers.download import check_md5, fetch_folder
from pfge.lab.data.readers.restricted_pickle import read_plain_pickle
from pfge.storage.bounded_files import read_bounded

_PIXELS = 3 * 32 * 32
_LONGEST_NAMES = 100_000


def load_cifar(
    cifar: Cifar, root: Path, *, download: bool = False, verify: bool = True
) -> tuple[ImageSet, ImageSet]:
    """Return all training and all test images.

    Args:
        cifar: `CIFAR10` or `CIFAR100`.
        root: The folder that holds an official folder, or that folder itself.
        download: Whether to fetch the data if it is not there.
        verify: Whether files must have their published md5, and classes their published names.
    """
    layout, folder = _find(cifar, root, download)
    names = _read_names(folder / layout.names, cifar, layout)
    if verify:
        _check_names(folder / layout.names, names, cifar)
    train = [_read(folder, file, cifar, layout, names, verify) for file in layout.train]
    test = [_read(folder, file, cifar, layout, names, verify) for file in layout.test]
    return _join(train), _join(test)


def _find(cifar: Cifar, root: Path, download: bool) -> tuple[CifarLayout, Path]:
    places = [(layout, folder) for layout in cifar.layouts for folder in (root / layout.folder, root)]
    searched = []
    for layout, folder in places:
        missing = [name for name in layout.files if not (folder / name).is_file()]
        if not missing:
            return layout, folder
        is_partial = len(missing) < len(layout.files)
        searched.append(f"{folder} (lacks {', '.join(missing)})" if is_partial else str(folder))
    if not download:
        raise DataError(
            f"{cifar.name} was not found in {'; '.join(dict.fromkeys(searched))}; "
            "use --download, or put the files there"
        )
    layout = cifar.layouts[0]
    fetch_folder(layout.url, root / layout.folder, layout.md5)
    return layout, root / layout.folder


def _read_names(path: Path, cifar: Cifar, layout: CifarLayout) -> tuple[str, ...]:
    if not layout.pickled:
        return tuple(read_bounded(path, _LONGEST_NAMES).decode("utf-8", errors="replace").split())
    names = _field(path, read_plain_pickle(path), cifar.names_key, list)
    if not all(isinstance(name, str) for name in names):
        raise DataError(f"{path} must hold texts under {cifar.names_key!r}; fetch it again (--download)")
    return tuple(names)


def _check_names(path: Path, names: tuple[str, ...], cifar: Cifar) -> None:
    # Not the md5 of the file: none was published of the binary layout's.
    digest = hashlib.sha256("\n".join(names).encode(errors="replace")).hexdigest()
    if cifar.names_sha256 not in (None, digest):
        raise DataError(
            f"{path} must hold the published names of the classes of {cifar.name}, but holds others; "
            "delete it and fetch it again (--download)"
        )


def _read(
    folder: Path, file: CifarFile, cifar: Cifar, layout: CifarLayout, names: tuple[str, ...], verify: bool
) -> ImageSet:
    path = folder / file.name
    if layout.pickled:
        # The md5 is checked first, because a pickle can run code.
        if verify and file.md5:
            check_md5(path, file.md5)
        labels, pixels = _read_pickled(path, file.images, cifar.label_key)
    else:
        # The size is checked first, because "truncated" is a clearer error than a wrong md5.
        labels, pixels = _read_binary(path, file.images, cifar.label_bytes)
        if verify and file.md5:
            check_md5(path, file.md5)
    try:
        return ImageSet(pixels.reshape(-1, 3, 32, 32), labels, names)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _read_binary(path: Path, images: int, label_bytes: int) -> tuple[Tensor, Tensor]:
    expected = images * (label_bytes + _PIXELS)
    if (found := path.stat().st_size) != expected:
        raise DataError(
            f"{path} must have {expected} bytes for {images} images, found {found}; "
            "it is truncated or of another data set: delete it and fetch it again (--download)"
        )
    records = torch.from_numpy(np.fromfile(path, dtype=np.uint8)).view(images, label_bytes + _PIXELS)
    return records[:, label_bytes - 1].long(), records[:, label_bytes:]


def _read_pickled(path: Path, images: int, label_key: str) -> tuple[Tensor, Tensor]:
    content = read_plain_pickle(path)
    labels = _field(path, content, label_key, list)
    pixels = _field(path, content, "data", np.ndarray)
    fits = pixels.shape == (images, _PIXELS) and pixels.dtype == np.uint8 and len(labels) == images
    if not fits or not all(isinstance(label, int) for label in labels):
        raise DataError(
            f"{path} must hold {images} whole numbers and a uint8 array [{images}, {_PIXELS}], "
            f"got {len(labels)} and {pixels.dtype} {list(pixels.shape)}; fetch it again (--download)"
        )
    return torch.tensor(labels), torch.from_numpy(pixels.copy())


def _field(path: Path, content: object, key: str, kind: type) -> Any:
    value = content.get(key) if isinstance(content, dict) else None
    if not isinstance(value, kind):
        raise DataError(f"{path} must hold a {kind.__name__} under {key!r}; fetch it again (--download)")
    return value


def _join(parts: list[ImageSet]) -> ImageSet:
    images = torch.cat([part.images for part in parts])
    return ImageSet(images, torch.cat([part.labels for part in parts]), parts[0].class_names)
