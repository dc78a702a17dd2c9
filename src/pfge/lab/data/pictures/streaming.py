"""Batches of picture files, read by worker processes: as reproducible as batches from memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from torch import Tensor

from pfge.lab.data.delivery import READ_HERE, Delivery
from pfge.lab.data.derived import Derived
from pfge.lab.data.in_memory.image_set import DataError, Normalization
from pfge.lab.data.ordering import EpochOrder
from pfge.lab.data.pictures.files import PictureFiles
from pfge.lab.data.pictures.reader import Key, PictureReader, PicturesByKey
from pfge.lab.data.sources import Batch


@dataclass(frozen=True, eq=False)
class StreamedPictures(Derived):
    """Picture files that are decoded only when a batch needs them.

    Attributes:
        files: Where the pictures are.
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
        self, normalization: Normalization, order: EpochOrder, delivery: Delivery
    ) -> "StreamedTraining":
        """Return endless shuffled batches of random resized crops, half of them mirrored."""
        pictures = PicturesByKey(self.files, self.size, order.seed)
        return StreamedTraining(order, PictureReader(pictures, normalization, delivery))

    def evaluation_batches(
        self, normalization: Normalization, batch_size: int, delivery: Delivery = READ_HERE
    ) -> "StreamedEvaluation":
        """Return all pictures in order, resized and cropped to their center."""
        pictures = PicturesByKey(self.files, self.size, None)
        return StreamedEvaluation(len(self), batch_size, PictureReader(pictures, normalization, delivery))


class StreamedTraining:
    """Endless training batches; each is a pure function of the seed and the iteration."""

    def __init__(self, order: EpochOrder, reader: PictureReader) -> None:
        self._order = order
        self._reader = reader

    @property
    def per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return self._order.per_epoch

    @property
    def corrupt(self) -> tuple[str, ...]:
        """The pictures that could not be read so far, in the order they were met."""
        return tuple(self._reader.corrupt)

    def at(self, iteration: int) -> Batch:
        """Return the batch of an iteration, counted from 1, read by this process."""
        return self._reader.read_here(self._keys(iteration))

    def starting_after(self, iteration: int, *, every: int = 1) -> Iterator[Batch]:
        """Yield the batches of the iterations after `iteration`, or every n-th of them, without end."""
        return self._reader.read(map(self._keys, count(iteration + 1, every)))

    def _keys(self, iteration: int) -> list[Key]:
        epoch = (iteration - 1) // self.per_epoch
        return [(epoch, index) for index in self._order.at(iteration).tolist()]


class StreamedEvaluation:
    """All pictures in their own order; can be iterated repeatedly."""

    def __init__(self, pictures: int, batch_size: int, reader: PictureReader) -> None:
        if batch_size < 1:
            raise DataError(f"batch_size must be at least 1, got {batch_size}")
        self._starts = range(0, pictures, batch_size)
        self._pictures = pictures
        self._reader = reader

    @property
    def corrupt(self) -> tuple[str, ...]:
        """The pictures that could not be read so far, in the order they were met."""
        return tuple(self._reader.corrupt)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Batch]:
        return self._reader.read(
            [(0, index) for index in range(start, min(start + self._starts.step, self._pictures))]
            for start in self._starts
        )
