"""Picture files in class folders, found once."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfge.lab.data.fingerprint import Fingerprint, digest
from pfge.lab.data.in_memory.image_set import DataError

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
        """Return where a picture is."""
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
        return blake2b(self.path(index).read_bytes()).digest()


def find_pictures(root: Path) -> PictureFiles:
    """Return all pictures in the class folders of `root`, sorted by class and then by path."""
    if not root.is_dir():
        raise DataError(f"{root} must be a folder of class folders, but there is none; check the path")
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if not classes:
        raise DataError(f"{root} must have a folder for each class, but it has no folder at all")
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
