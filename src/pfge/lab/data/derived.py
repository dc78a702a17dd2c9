"""Items that are made from others, as pictures from files."""

from abc import ABC, abstractmethod

from torch import Tensor

from pfge.lab.data.fingerprint import Fingerprint
from pfge.lab.data.sources import Labeled


class Derived(ABC):
    """Items that have the targets of those that they are made from."""

    @property
    @abstractmethod
    def origin(self) -> Labeled:
        """What the items are made from, one each."""

    @property
    def labels(self) -> Tensor:
        """The target of each item; class numbers are int64 [N]."""
        return self.origin.labels

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class."""
        return self.origin.class_names

    def __len__(self) -> int:
        return len(self.origin)

    def fingerprint(self) -> Fingerprint:
        """Return what tells the items' origin apart from others."""
        return self.origin.fingerprint()
