"""Decode picture files in worker processes, and replace those that cannot be read."""

import warnings
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pfge.lab.data.delivery import Delivery
from pfge.lab.data.in_memory.image_set import DataError, DataWarning, Normalization
from pfge.lab.data.in_memory.inputs import ToInputs
from pfge.lab.data.pictures.decoding import center_crop, open_picture, random_resized_crop
from pfge.lab.data.pictures.files import PictureFiles
from pfge.lab.data.seeding import generator
from pfge.lab.data.sources import Batch

_MOST_TRIED = 100  # so that a disk that has gone is noticed soon

Key: TypeAlias = tuple[int, int]  # epoch and index
_Item: TypeAlias = tuple[Tensor, int, list[str], str]
_RawBatch: TypeAlias = tuple[Tensor, Tensor, list[list[str]], list[str]]


class PicturesByKey(Dataset[_Item]):
    """Pixels [H, W, C], label, unreadable files, and why the picture is refused or "", for each key.

    A picture that cannot be read is replaced by the next one of its class.

    Args:
        files: Where the pictures are.
        size: Height and width of the pixels.
        seed: Decides the random crops, together with the key; None for center crops.
    """

    def __init__(self, files: PictureFiles, size: int, seed: int | None) -> None:
        self.files = files
        self.size = size
        self._seed = seed
        self._of_class: dict[int, Tensor] = {}

    def __getitem__(self, key: Key) -> _Item:
        epoch, wanted = key
        corrupt: list[str] = []
        for index in self._with_replacements(wanted):
            path = self.files.path(index)
            try:
                picture = open_picture(path)
            except DataError as error:
                return self._refused(str(error))
            except Exception:  # decoders raise many types; in each case the file is not usable
                corrupt.append(str(path))
                continue
            if self._seed is None:
                pixels = center_crop(picture, resize=round(self.size * 256 / 224), size=self.size)
            else:
                random = generator(self._seed, "picture", epoch, index)
                pixels = random_resized_crop(picture, size=self.size, generator=random)
            return pixels, int(self.files.labels[index]), corrupt, ""
        label = int(self.files.labels[wanted])
        name, total = self.files.class_names[label], len(self._of_class[label])
        return self._refused(
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

    def _refused(self, reason: str) -> _Item:
        # The main process reports the error: one raised in a worker would arrive as a traceback.
        return torch.zeros(self.size, self.size, 3, dtype=torch.uint8), 0, [], reason


class PictureReader:
    """Read batches of pictures, turn them into inputs and count the corrupt ones.

    Args:
        pictures: What to read.
        normalization: Turns pixels into inputs.
        delivery: How the batches reach the model.
    """

    def __init__(self, pictures: PicturesByKey, normalization: Normalization, delivery: Delivery) -> None:
        self.corrupt: dict[str, None] = {}
        self._pictures = pictures
        self._delivery = delivery
        example = torch.empty(0, 3, pictures.size, pictures.size, device=delivery.device)
        self._to_inputs = ToInputs(normalization, example, channels_last=delivery.channels_last)

    def read_here(self, keys: list[Key]) -> Batch:
        """Return one batch, read by this process."""
        return self._deliver(_collate([self._pictures[key] for key in keys]))

    def read(self, batches: Iterable[list[Key]]) -> Iterator[Batch]:
        """Yield the batches, which the workers read ahead."""
        loader = DataLoader(
            self._pictures,
            batch_sampler=batches,
            num_workers=self._delivery.workers,
            collate_fn=_collate,
            pin_memory=self._delivery.device.type == "cuda",
            # A loader draws a number for its workers; without this it would take it from the global stream.
            generator=torch.Generator(),
        )
        return map(self._deliver, loader)

    def _deliver(self, batch: _RawBatch) -> Batch:
        pixels, labels, corrupt, refusals = batch
        if refusals:
            raise DataError(refusals[0])
        for names in corrupt:
            self._count(names)
        pixels = pixels.to(self._delivery.device, non_blocking=True)
        inputs = self._to_inputs(pixels if self._delivery.channels_last else pixels.permute(0, 3, 1, 2))
        return inputs, labels.to(self._delivery.device, non_blocking=True)

    def _count(self, corrupt: list[str]) -> None:
        if not self.corrupt:
            warnings.warn(
                f"corrupt picture {corrupt[0]}: the next one of its class takes its place; "
                "this warning is shown once, all are counted in `corrupt`",
                DataWarning,
                stacklevel=3,
            )
        self.corrupt.update(dict.fromkeys(corrupt))


def _collate(items: list[_Item]) -> _RawBatch:
    pixels, labels, corrupt, refusals = zip(*items, strict=True)
    return torch.stack(pixels), torch.tensor(labels), [*filter(None, corrupt)], [*filter(None, refusals)]
