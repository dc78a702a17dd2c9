"""Members that are read or made one at a time, when asked for."""

from collections.abc import Callable, Sequence
from typing import overload

from pfge.weights import Weights


class LazyMembers(Sequence[Weights]):
    """A sequence of weights of which none is kept in memory.

    Args:
        length: How many members there are.
        read: Returns the member at an index from 0 to length - 1.
        nbytes: The bytes of the members together, where they share tensors: a number if that is the same for
            any of them, or a function of how many they are; None if each has its own.
    """

    def __init__(
        self,
        length: int,
        read: Callable[[int], Weights],
        *,
        nbytes: int | Callable[[int], int] | None = None,
    ):
        self._nbytes = nbytes
        self._indices = range(length)
        self._read = read

    @property
    def nbytes(self) -> int | None:
        """The bytes of the members together, where they share tensors."""
        return self._nbytes(len(self)) if callable(self._nbytes) else self._nbytes

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Weights: ...
    @overload
    def __getitem__(self, index: slice) -> "LazyMembers": ...
    def __getitem__(self, index: int | slice) -> "Weights | LazyMembers":
        if isinstance(index, int):
            return self._read(self._indices[index])
        part = LazyMembers(0, self._read, nbytes=self._nbytes)
        part._indices = self._indices[index]
        return part
