"""The first batches of a source."""

from collections.abc import Iterator
from itertools import islice

from pfge.lab.data import Batch, TrainingSource


class FirstBatches:
    """The first batches of a source, or one process's share of them; can be iterated repeatedly."""

    def __init__(self, source: TrainingSource, count: int, share: tuple[int, int]):
        number, every = share
        self._source = source
        self._places = range(number, count, every)

    def __iter__(self) -> Iterator[Batch]:
        batches = self._source.starting_after(self._places.start, every=self._places.step)
        return islice(batches, len(self._places))
