"""Published image files with their checksums: CIFAR-10, CIFAR-100, MNIST and Fashion-MNIST."""

import gzip
import hashlib
import io
import pickle
import pickletools
import shutil
import tarfile
import urllib.request
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfge.lab.data.base import DataError, Normalization
from pfge.lab.data.in_memory import ImageSet
from pfge.storage.files import DATA_LIMIT, open_regular, read_bounded

_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 60


def check_md5(path: Path, expected: str) -> None:
    """Raise DataError unless the file has the published md5."""
    found = _md5(path)
    if found != expected:
        raise DataError(
            f"{path} must have the published md5 {expected}, found {found}; "
            "delete the file and fetch it again (--download)"
        )


def fetch(url: str, target: Path, md5: str) -> None:
    """Download a file; `target` appears only once it is whole and its md5 is right."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, because a rename is atomic only within a file system.
        with TemporaryDirectory(dir=target.parent, prefix=".download-") as scratch:
            part = Path(scratch) / target.name
            _transfer(url, part, md5)
            part.replace(target)
    except (OSError, HTTPException) as error:
        raise DataError(_failed(url, target.parent, error)) from error


def fetch_folder(url: str, folder: Path, md5: str) -> None:
    """Download a tar archive of one folder and put that folder's files into `folder`.

    Args:
        url: The archive; its files must be in a folder with the name of `folder`.
        folder: Target of the files; files of the same names are replaced.
        md5: The published md5 of the archive.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent, prefix=".download-") as scratch:
            archive_path = Path(scratch) / "archive"
            _transfer(url, archive_path, md5)
            with tarfile.open(archive_path) as archive:
                archive.extractall(scratch, filter="data")
            for file in sorted((Path(scratch) / folder.name).iterdir()):
                file.replace(folder / file.name)
    except (OSError, HTTPException, tarfile.TarError) as error:
        raise DataError(_failed(url, folder, error)) from error


def _transfer(url: str, target: Path, md5: str) -> None:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, _BLOCK)
    found = _md5(target)
    if found != md5:
        raise DataError(f"{url} must have the published md5 {md5}, found {found}; try again later")


def _failed(url: str, folder: Path, error: Exception) -> str:
    return f"could not fetch {url}: {error}; fetch it by other means and put its files into {folder}"


def _md5(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


MAX_DEPTH = 20
_NUMBERS = {"u1", "i1", "i4", "i8", "f4", "f8"}


class _DType:
    """The element type of an array."""

    __slots__ = ("code",)

    def __init__(self, code: str, *_: object) -> None:
        if code not in _NUMBERS:
            raise pickle.UnpicklingError(f"arrays may hold only {sorted(_NUMBERS)}, got {code!r}")
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] == ">":
            raise pickle.UnpicklingError("arrays must be little-endian")


class _Array:
    """The shape, element type and bytes of an array."""

    __slots__ = ("value",)

    def __init__(self, *_: object) -> None:
        self.value = np.empty(0, dtype=np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _DType, bool, str | bytes]) -> None:
        _, shape, dtype, in_columns, data = state
        raw = data.encode("latin-1") if isinstance(data, str) else data
        flat = np.frombuffer(raw, dtype=f"<{dtype.code}")
        if flat.size != prod(shape):
            raise pickle.UnpicklingError(f"an array of shape {shape} has {flat.size} elements")
        self.value = flat.reshape(shape, order="F" if in_columns else "C")


_STAND_INS: dict[tuple[str, str], object] = {
    # numpy 1 and 2 name the same function differently.
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): _DType,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        try:
            return _STAND_INS[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module_name}.{global_name}, which is not plain data"
            ) from None


def read_plain_pickle(path: Path) -> object:
    """Return the dicts, lists, strings, numbers and arrays of a pickle.

    Args:
        path: A pickle, of Python 2 or 3; byte strings of Python 2 become str.

    Raises:
        DataError: The file is damaged or asks for anything that is not plain data.
    """
    try:
        data = read_bounded(path, DATA_LIMIT)
        _require_bounded_memo(data)
        return _plain(_Reader(io.BytesIO(data), encoding="latin-1").load(), {}, MAX_DEPTH)
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can raise any error
        raise DataError(
            f"{path} was refused as a pickle of plain data: {error or type(error).__name__}; "
            "fetch it again from its official source"
        ) from error


def _require_bounded_memo(data: bytes) -> None:
    """Refuse a pickle that numbers its values higher than it has values.

    A reader makes room for all numbers up to the highest, so nine bytes could take all memory.
    """
    highest = operations = 0
    for operation, number, _ in pickletools.genops(data):
        operations += 1
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT"):
            highest = max(highest, int(number or 0))
    if highest > operations:
        raise pickle.UnpicklingError(f"it numbers a value {highest}, but has {operations} operations")


def _plain(value: object, seen: dict[int, object], depth: int) -> object:
    """Return a value with its arrays; `seen` has what was done by identity, as values may be shared."""
    if not depth:
        raise pickle.UnpicklingError(f"its values are nested deeper than {MAX_DEPTH}, or contain themselves")
    if isinstance(value, _Array):
        return value.value
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    if not isinstance(value, dict | list | tuple):
        raise pickle.UnpicklingError(f"it holds a {type(value).__name__}, which is not plain data")
    if id(value) not in seen:
        if isinstance(value, dict):
            seen[id(value)] = {key: _plain(item, seen, depth - 1) for key, item in value.items()}
        else:
            seen[id(value)] = type(value)(_plain(item, seen, depth - 1) for item in value)
    return seen[id(value)]


_SITE = "https://www.cs.toronto.edu/~kriz"


@dataclass(frozen=True)
class CifarFile:
    """One file of images; its md5 is None where none was published."""

    name: str
    images: int
    md5: str | None


@dataclass(frozen=True)
class CifarLayout:
    """The files of a data set in one of its official forms.

    Attributes:
        folder: The folder in the archive.
        url: The archive.
        md5: The published md5 of the archive.
        train: The files with training images, in order.
        test: The files with test images.
        names: The file with the class names.
        pickled: Whether the files are pickles.
    """

    folder: str
    url: str
    md5: str
    train: tuple[CifarFile, ...]
    test: tuple[CifarFile, ...]
    names: str
    pickled: bool

    @property
    def files(self) -> list[str]:
        """The names of all files."""
        return [*(file.name for file in (*self.train, *self.test)), self.names]


@dataclass(frozen=True)
class Cifar:
    """One of the two data sets.

    Attributes:
        name: Name of the data set in configs.
        layouts: The official forms; the first is the one to download.
        has_superclasses: Whether each image has a superclass too, before its class.
        names_sha256: SHA-256 of the class names, joined by line ends; None allows any names.
        normalization: The statistics of the training images.
    """

    name: str
    layouts: tuple[CifarLayout, ...]
    has_superclasses: bool
    names_sha256: str | None
    normalization: Normalization

    @property
    def label_bytes(self) -> int:
        """Bytes before the pixels of a binary record; the last is the class."""
        return 2 if self.has_superclasses else 1

    @property
    def label_key(self) -> str:
        """Key of the classes in a pickle."""
        return "fine_labels" if self.has_superclasses else "labels"

    @property
    def names_key(self) -> str:
        """Key of the class names in a pickle."""
        return "fine_label_names" if self.has_superclasses else "label_names"


def _batches(suffix: str, md5s: str) -> tuple[tuple[CifarFile, ...], tuple[CifarFile, ...]]:
    *train, test = md5s.split()
    batches = [CifarFile(f"data_batch_{n}{suffix}", 10_000, md5) for n, md5 in enumerate(train, start=1)]
    return tuple(batches), (CifarFile(f"test_batch{suffix}", 10_000, test),)


_binary_train, _binary_test = _batches(
    ".bin",
    "5dd7e06a14cb22eb9f671a540d1b7c25 5ea93a67294ea407fff1d09f752e9692 942cd6a4bcdd0dd3c604fbe906cb4421 "
    "ae636b3ba5c66a11e91e8cb52e771fcb 53f37980c15c3d472c316c40844f3f0d 803d5f7f4d78ea53de84dbe85f74fb6d",
)
_pickled_train, _pickled_test = _batches(
    "",
    "c99cafc152244af753f735de768cd75f d4bba439e000b95fd0a9bffe97cbabec 54ebc095f3ab1f0389bbae665268c751 "
    "634d18415352ddfa80567beed471001a 482c414d41f54cd18b22e5b47cb7c3cb 40351d587109b95175f43aff81a1287e",
)

CIFAR10 = Cifar(
    name="cifar10",
    layouts=(
        CifarLayout(
            folder="cifar-10-batches-bin",
            url=f"{_SITE}/cifar-10-binary.tar.gz",
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            train=_binary_train,
            test=_binary_test,
            names="batches.meta.txt",
            pickled=False,
        ),
        CifarLayout(
            folder="cifar-10-batches-py",
            url=f"{_SITE}/cifar-10-python.tar.gz",
            md5="c58f30108f718f92721af3b95e74349a",
            train=_pickled_train,
            test=_pickled_test,
            names="batches.meta",
            pickled=True,
        ),
    ),
    has_superclasses=False,
    names_sha256="bb3914949cecedee6d1257f7f5fdb8f43fa3b2c8095fd1763161caf1b873fe59",
    normalization=Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
)

CIFAR100 = Cifar(
    name="cifar100",
    layouts=(
        CifarLayout(
            folder="cifar-100-binary",
            url=f"{_SITE}/cifar-100-binary.tar.gz",
            md5="03b5dce01913d631647c71ecec9e9cb8",
            train=(CifarFile("train.bin", 50_000, None),),
            test=(CifarFile("test.bin", 10_000, None),),
            names="fine_label_names.txt",
            pickled=False,
        ),
        CifarLayout(
            folder="cifar-100-python",
            url=f"{_SITE}/cifar-100-python.tar.gz",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
            train=(CifarFile("train", 50_000, "16019d7e3df5f24257cddd939b257f8d"),),
            test=(CifarFile("test", 10_000, "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
            names="meta",
            pickled=True,
        ),
    ),
    has_superclasses=True,
    names_sha256="fbe8ad23bbaf24969898a386833b49c3aaf6ad1119d43f7b41cdea1b3416d578",
    normalization=Normalization((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)


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
    layout, folder = _find_cifar(cifar, root, download)
    names = _read_names(folder / layout.names, cifar, layout)
    if verify:
        _check_names(folder / layout.names, names, cifar)
    train = [_read_cifar(folder, file, cifar, layout, names, verify) for file in layout.train]
    test = [_read_cifar(folder, file, cifar, layout, names, verify) for file in layout.test]
    return _join(train), _join(test)


def _find_cifar(cifar: Cifar, root: Path, download: bool) -> tuple[CifarLayout, Path]:
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
        raise DataError(f"{path} must hold strings under {cifar.names_key!r}; fetch it again (--download)")
    return tuple(names)


def _check_names(path: Path, names: tuple[str, ...], cifar: Cifar) -> None:
    # Not the md5 of the file: none was published of the binary layout's.
    digest = hashlib.sha256("\n".join(names).encode(errors="replace")).hexdigest()
    if cifar.names_sha256 not in (None, digest):
        raise DataError(
            f"{path} must hold the published names of the classes of {cifar.name}, but holds others; "
            "delete it and fetch it again (--download)"
        )


def _read_cifar(
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
            "it is truncated or belongs to another data set: delete it and fetch it again (--download)"
        )
    raw = torch.frombuffer(bytearray(read_bounded(path, expected)), dtype=torch.uint8)
    records = raw.view(images, label_bytes + _PIXELS)
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


_UINT8 = 0x08


@dataclass(frozen=True)
class IdxData:
    """One of the data sets.

    Attributes:
        name: Name of the data set in configs.
        folders: Folders below the data root that may have the files; downloads go to the first.
        url: The folder of the site that has the gzipped files.
        md5: The published md5 of each gzipped file.
        class_names: Name of each class.
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
    files = {name: _find_idx(data, name, places, download) for name in data.md5}
    if verify:
        for name, path in files.items():
            if path.suffix == ".gz":
                check_md5(path, data.md5[name])
    train_images, train_labels, test_images, test_labels = (read_idx(path) for path in files.values())
    return _idx_image_set(data, train_images, train_labels), _idx_image_set(data, test_images, test_labels)


def read_idx(path: Path) -> Tensor:
    """Return the uint8 tensor in an idx file.

    The file starts with two zero bytes, the code of the element type and the number of dimensions;
    then come the sizes as big-endian 32-bit numbers, and the elements.
    """
    raw = _read_idx_bytes(path)
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


def _read_idx_bytes(path: Path) -> bytes:
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


def _find_idx(data: IdxData, name: str, places: list[Path], download: bool) -> Path:
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


def _idx_image_set(data: IdxData, images: Tensor, labels: Tensor) -> ImageSet:
    if images.ndim != 3 or labels.ndim != 1:
        raise DataError(
            f"{data.name} must have images [N, H, W] and labels [N], "
            f"got {list(images.shape)} and {list(labels.shape)}; check that no files were exchanged"
        )
    try:
        return ImageSet(images[:, None], labels.long(), data.class_names)
    except DataError as error:
        raise DataError(f"{data.name}: {error}") from error
