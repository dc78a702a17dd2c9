"""Image files: find, decode, stream."""

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b, file_digest
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pfge.errors import InvalidValueError
from pfge.lab.data.base import (
    IMAGENET_NORMALIZATION,
    DataError,
    DataWarning,
    Fingerprint,
    Normalization,
    digest,
    generator,
)
from pfge.lab.data.batches import (
    MAIN_PROCESS,
    Batch,
    BatchKey,
    EpochOrder,
    EvaluationBatches,
    LoadedBatches,
    LoaderOptions,
    TrainingBatches,
    load,
    required,
)
from pfge.lab.data.in_memory import ImageSet, ToInputs
from pfge.lab.data.splits import LabelProxy, Splits, stratified
from pfge.storage.files import open_regular

_AREA = (0.08, 1.0)
_LOG_ASPECT = (math.log(3 / 4), math.log(4 / 3))
_TRIES = 10
LONGEST_SIDE = 50
MOST_PIXELS = 1 << 26
"""Pixels of a resized picture, 200 MB."""
_16_BITS = ("PNG", "PPM")  # formats whose pixels of mode I go up to 65535: .pgm, and .png before Pillow 11


def open_picture(path: Path) -> Image.Image:
    """Return a picture as RGB, completely decoded, so that a damaged file raises here.

    Of 16 bits the high byte is taken, in every picture alike, so that dark ones stay dark.

    Raises:
        DataError: The range of the pixels is not known, as for floating-point pixels.
    """
    with open_regular(path) as file, Image.open(file) as picture:
        if max(picture.size) > LONGEST_SIDE * min(picture.size):
            # Its shorter side is made as long as a crop, so a file of a few bytes would take gigabytes.
            raise InvalidValueError(
                f"a picture's longer side must be at most {LONGEST_SIDE} times the shorter one, got "
                f"{picture.width} x {picture.height} in {path}; crop it, or remove it"
            )
        if picture.mode[0] in "IF":
            return _in_8_bits(picture, path).convert("RGB")
        # Through RGBA, because Pillow warns of palettes with transparency.
        return (picture.convert("RGBA") if picture.mode == "P" else picture).convert("RGB")


def center_crop(picture: Image.Image, *, resize: int, size: int) -> Tensor:
    """Return the middle square of a picture whose shorter side was made `resize`, [size, size, 3].

    Raises:
        DataError: The resized picture would take too much memory.
    """
    factor = resize / min(picture.size)
    width, height = (max(resize, int(side * factor)) for side in picture.size)
    if width * height > MOST_PIXELS:
        raise DataError(
            f"a picture must have at most {MOST_PIXELS:,} pixels once it is resized, got {width} x {height} "
            f"from {picture.width} x {picture.height}; crop it, or choose a smaller size"
        )
    left, top = round((width - size) / 2), round((height - size) / 2)
    resized = picture.resize((width, height), Image.Resampling.BILINEAR)
    return _pixels(resized.crop((left, top, left + size, top + size)))


def random_resized_crop(picture: Image.Image, *, size: int, generator: torch.Generator) -> Tensor:
    """Return a random part of a picture, mirrored half of the time, [size, size, 3].

    The part has 8 % to 100 % of the area and an aspect ratio from 3:4 to 4:3.
    """
    box = random_box(*picture.size, generator)
    part = picture.crop(box).resize((size, size), Image.Resampling.BILINEAR)
    if torch.rand((), generator=generator) < 0.5:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return _pixels(part)


def random_box(width: int, height: int, generator: torch.Generator) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a random part of a picture.

    Where ten draws give no part that fits, as in very long pictures, it is the largest part in the
    middle with an allowed aspect ratio.
    """
    area = width * height * torch.empty(_TRIES, dtype=torch.float64).uniform_(*_AREA, generator=generator)
    aspect = torch.empty(_TRIES, dtype=torch.float64).uniform_(*_LOG_ASPECT, generator=generator).exp()
    corner = torch.rand(2, dtype=torch.float64, generator=generator).tolist()
    for box_width, box_height in zip(
        (area * aspect).sqrt().round().int().tolist(),
        (area / aspect).sqrt().round().int().tolist(),
        strict=True,
    ):
        if 0 < box_width <= width and 0 < box_height <= height:
            left = int(corner[0] * (width - box_width + 1))
            top = int(corner[1] * (height - box_height + 1))
            return left, top, left + box_width, top + box_height
    box_width = min(width, round(height * math.exp(_LOG_ASPECT[1])))
    box_height = min(height, round(width / math.exp(_LOG_ASPECT[0])))
    left, top = (width - box_width) // 2, (height - box_height) // 2
    return left, top, left + box_width, top + box_height


def _in_8_bits(picture: Image.Image, path: Path) -> Image.Image:
    """Return gray pixels of more bits in 8; Pillow would make all above 255 white."""
    values = np.asarray(picture)
    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in _16_BITS):
        return Image.fromarray((values >> 8).astype(np.uint8))
    low, high = values.min(), values.max()
    if picture.mode == "I" and low >= 0 and high <= 255:
        return Image.fromarray(values.astype(np.uint8))
    kind = "floating-point" if picture.mode == "F" else "32-bit"
    raise DataError(
        f"a picture must have 8 or 16 bits for each channel, as what is black and white is not known "
        f"otherwise, got {kind} pixels from {low:g} to {high:g} in {path}; save it with 8 bits, or remove it"
    )


def _pixels(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture))


_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_SIZES = 1000  # a million would take seconds, or minutes over a network


@dataclass(frozen=True, eq=False)
class PictureFiles:
    """Picture files and their classes.

    Attributes:
        root: The folder of the class folders.
        names: Paths below `root`, as bytes in one array: worker processes share its memory, where
            they would each end up with a copy of a million Python strings.
        labels: int64 class numbers, [N].
        class_names: The names of the class folders, sorted.
    """

    root: Path
    names: NDArray[np.bytes_]
    labels: Tensor
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> Path:
        """Return the path of a picture."""
        return self.root / os.fsdecode(bytes(self.names[index]))

    def select(self, indices: Tensor | Sequence[int]) -> "PictureFiles":
        """Return the pictures at `indices`, in that order."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        return replace(self, names=self.names[chosen.numpy()], labels=self.labels[chosen])

    def content_numbers(self) -> Tensor:
        """Return a number for each file, int64 [N], that depends on its name and its bytes."""
        return self._numbers(self._content)

    def fingerprint(self) -> Fingerprint:
        """Return what tells these files apart from others: all names, and the sizes of some."""
        some = self.select(torch.linspace(0, len(self) - 1, min(len(self), _SIZES)).round().long())
        content = digest(b"\n".join(self.names.tolist()), some._numbers(some._size))
        return Fingerprint("images", len(self), digest(self.labels, self.class_names), content)

    def _numbers(self, of_file: Callable[[int], bytes]) -> Tensor:
        found = [
            int.from_bytes(
                blake2b(b"%b %b" % (name, of_file(index)), digest_size=8).digest(), "big", signed=True
            )
            for index, name in enumerate(self.names.tolist())
        ]
        return torch.tensor(found, dtype=torch.int64)

    def _size(self, index: int) -> bytes:
        return b"%d" % self.path(index).stat().st_size

    def _content(self, index: int) -> bytes:
        with open_regular(self.path(index)) as file:
            return file_digest(file, "blake2b").digest()


def find_pictures(root: Path) -> PictureFiles:
    """Return all pictures in the class folders of `root`, sorted by class and then by path."""
    if not root.is_dir():
        raise DataError(f"{root} must be a folder of class folders, but does not exist; check the path")
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if not classes:
        raise DataError(f"{root} must have a folder for each class, but does not contain folders; add them")
    names: list[bytes] = []
    labels: list[int] = []
    for label, class_name in enumerate(classes):
        found = sorted(
            os.fsencode(os.path.relpath(os.path.join(folder, file), root))  # noqa: PTH118 - a million files
            for folder, _, files in os.walk(root / class_name)
            for file in files
            if file.lower().endswith(_SUFFIXES)
        )
        if not found:
            raise DataError(
                f"the class folder {root / class_name} has no pictures ({' '.join(_SUFFIXES)}); "
                "add some or remove it"
            )
        names += found
        labels += [label] * len(found)
    return PictureFiles(root, np.array(names), torch.tensor(labels), tuple(classes))


def check_same_classes(train: PictureFiles, other: PictureFiles) -> None:
    """Raise DataError unless both have the same class folders."""
    for have, lack in ((train, other), (other, train)):
        missing = sorted(set(have.class_names) - set(lack.class_names))
        if missing:
            shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise DataError(
                f"{lack.root} lacks {len(missing)} class folders that {have.root} has: {shown}; "
                "every class needs a folder in both"
            )


_MOST_TRIED = 100  # so that a disk that has gone is noticed soon


class PictureBatches(LoadedBatches):
    """Pixels [N, H, W, C], labels and unreadable files of each batch.

    A picture that cannot be read is replaced by the next one of its class.

    Args:
        files: Picture files.
        size: Height and width of the pixels.
        seed: Decides the random crops, together with epoch and index; None for center crops.
    """

    def __init__(self, files: PictureFiles, size: int, seed: int | None) -> None:
        self.files = files
        self.size = size
        self._seed = seed
        self._of_class: dict[int, Tensor] = {}

    def read(self, key: BatchKey) -> tuple[Tensor, Tensor, list[list[str]]]:
        """Return pixels and labels, and the files that could not be read for each picture.

        Raises:
            DataError: A class has no readable picture, or the range of a picture's pixels is not known.
        """
        items = [self._picture(key.epoch, int(index)) for index in key.indices]
        pixels, labels, corrupt = zip(*items, strict=True)
        return torch.stack(pixels), torch.tensor(labels), [*filter(None, corrupt)]

    def _picture(self, epoch: int, wanted: int) -> tuple[Tensor, int, list[str]]:
        corrupt: list[str] = []
        for index in self._with_replacements(wanted):
            path = self.files.path(index)
            try:
                picture = open_picture(path)
            except DataError:
                raise
            except Exception:  # decoders raise many types; in each case the file is not usable
                corrupt.append(str(path))
                continue
            if self._seed is None:
                pixels = center_crop(picture, resize=round(self.size * 256 / 224), size=self.size)
            else:
                random = generator(self._seed, "picture", epoch, index)
                pixels = random_resized_crop(picture, size=self.size, generator=random)
            return pixels, int(self.files.labels[index]), corrupt
        label = int(self.files.labels[wanted])
        name, total = self.files.class_names[label], len(self._of_class[label])
        raise DataError(
            f"{len(corrupt)} of {total} pictures of class {name!r} were tried and none could be read, the "
            f"first is {corrupt[0]}; check that the disk is there and the files are pictures"
        )

    def _with_replacements(self, index: int) -> Iterator[int]:
        """Yield a picture, and then those after it of the same class, so that its label stays right."""
        yield index
        label = int(self.files.labels[index])
        if label not in self._of_class:
            self._of_class[label] = (self.files.labels == label).nonzero().flatten()
        alike = self._of_class[label]
        place = int(torch.searchsorted(alike, index))
        yield from alike.roll(-place)[1:_MOST_TRIED].tolist()


class PictureReader:
    """Read batches of pictures, turn them into inputs and count the corrupt files.

    Args:
        pictures: Batches of pixels.
        normalization: Turns pixels into inputs.
        options: Workers that read ahead, device and memory format.

    Attributes:
        corrupt: Paths of the files that could not be read so far, in the order they were met.
    """

    def __init__(
        self, pictures: PictureBatches, normalization: Normalization, options: LoaderOptions
    ) -> None:
        self.corrupt: dict[str, None] = {}
        self._pictures = pictures
        self._options = options
        example = torch.empty(0, 3, pictures.size, pictures.size, device=options.device)
        self._to_inputs = ToInputs(normalization, example, channels_last=options.channels_last)

    def __call__(self, keys: Iterable[BatchKey]) -> Iterator[Batch]:
        """Yield the batches, which the workers read ahead."""
        for pixels, labels, corrupt in load(self._pictures, keys, self._options):
            for names in corrupt:
                self._count(names)
            moved = pixels.to(self._options.device, non_blocking=True)
            inputs = self._to_inputs(moved if self._options.channels_last else moved.permute(0, 3, 1, 2))
            yield inputs, labels.to(self._options.device, non_blocking=True)

    def _count(self, corrupt: list[str]) -> None:
        if not self.corrupt:
            warnings.warn(
                f"corrupt picture {corrupt[0]}: the next one of its class takes its place; "
                "this warning is shown once, `reader.corrupt` of the batches lists all",
                DataWarning,
                stacklevel=3,
            )
        self.corrupt.update(dict.fromkeys(corrupt))


@dataclass(frozen=True, eq=False)
class StreamedPictures(LabelProxy):
    """Picture files that are decoded only when a batch needs them.

    Attributes:
        files: Files of the pictures.
        size: Height and width of the inputs.
    """

    files: PictureFiles
    size: int = 224

    @property
    def origin(self) -> PictureFiles:
        """The files."""
        return self.files

    def select(self, indices: Tensor | Sequence[int]) -> "StreamedPictures":
        """Return the pictures at `indices`, in that order."""
        return replace(self, files=self.files.select(indices))

    def training_batches(
        self, normalization: Normalization | None, order: EpochOrder, options: LoaderOptions
    ) -> TrainingBatches:
        """Return endless shuffled batches of random resized crops, half of them mirrored."""
        pictures = PictureBatches(self.files, self.size, order.seed)
        return TrainingBatches(order, PictureReader(pictures, required(normalization), options))

    def evaluation_batches(
        self, normalization: Normalization | None, batch_size: int, options: LoaderOptions = MAIN_PROCESS
    ) -> EvaluationBatches:
        """Return all pictures in order, resized and cropped to their center."""
        pictures = PictureBatches(self.files, self.size, None)
        reader = PictureReader(pictures, required(normalization), options)
        return EvaluationBatches(len(self), batch_size, reader)


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
    normalization = Normalization.measure(train.images)
    return Splits(train=train, validation=validation, test=test, normalization=normalization)


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
    """Refuse names of splits that would be taken for classes, or be ignored."""
    folders = [entry.name for entry in path.iterdir() if entry.is_dir()] if path.is_dir() else []
    found = sorted(name for name in folders if name.lower() in _LIKE_PARTS)
    # One alone may be a class, as "valid" beside "invalid".
    if len(found) > 1 and not set(found) <= set(_PARTS):
        raise DataError(
            f"the splits in {path} must be called train, val and test, got {', '.join(found)}; rename them"
        )


def _streamed(parts: tuple[PictureFiles, PictureFiles, PictureFiles], size: int) -> Splits:
    train, validation, test = (StreamedPictures(files, size) for files in parts)
    return Splits(train=train, validation=validation, test=test, normalization=IMAGENET_NORMALIZATION)
