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

_UNREADABLE_IN_A_ROW = 100

Key: TypeAlias = tuple[int, int]  # epoch and index
_Item: TypeAlias = tuple[Tensor, int, list[str], str]
_RawBatch: TypeAlias = tuple[Tensor, Tensor, list[list[str]], list[str]]


class PicturesByKey(Dataset[_Item]):
    """Pixels [H, W, C], label, unreadable files, and why the picture is refused or "", for each key.

    A picture that cannot be read is replaced by the next one.

    Args:
        files: Where the pictures are.
        size: Height and width of the pixels.
        seed: Decides the random crops, together with the key; None for center crops.
    """

    def __init__(self, files: PictureFiles, size: int, seed: int | None) -> None:
        self.files = files
        self.size = size
        self._seed = seed

    def __getitem__(self, key: Key) -> _Item:
        epoch, wanted = key
        corrupt: list[str] = []
        refusal = ""
        while len(corrupt) < _UNREADABLE_IN_A_ROW:
            index = (wanted + len(corrupt)) % len(self.files)
            path = self.files.path(index)
            try:
                picture = open_picture(path)
            except DataError as error:
                refusal = str(error)
                break
            except Exception:  # decoders raise many types; in each case the file is not usable
                corrupt.append(str(path))
                continue
            if self._seed is None:
                pixels = center_crop(picture, resize=round(self.size * 256 / 224), size=self.size)
            else:
                random = generator(self._seed, "picture", epoch, index)
                pixels = random_resized_crop(picture, size=self.size, generator=random)
            return pixels, int(self.files.labels[index]), corrupt, refusal
        # The main process reports the error: one raised in a worker would arrive as a traceback.
        return torch.zeros(self.size, self.size, 3, dtype=torch.uint8), 0, corrupt, refusal


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
        if len(corrupt) == _UNREADABLE_IN_A_ROW:
            raise DataError(
                f"{len(corrupt)} pictures in a row could not be read, the first is {corrupt[0]}; "
                "check that the disk is there and the files are pictures"
            )
        if not self.corrupt:
            warnings.warn(
                f"corrupt picture {corrupt[0]}: the next one takes its place; "
                "this warning is shown once, all are counted in `corrupt`",
                DataWarning,
                stacklevel=3,
            )
        self.corrupt.update(dict.fromkeys(corrupt))


def _collate(items: list[_Item]) -> _RawBatch:
    pixels, labels, corrupt, refusals = zip(*items, strict=True)
    return torch.stack(pixels), torch.tensor(labels), [*filter(None, corrupt)], [*filter(None, refusals)]
