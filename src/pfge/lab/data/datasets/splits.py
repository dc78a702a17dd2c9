"""What a function of the user returns for data of any kind."""

from collections.abc import Sequence
from dataclasses import dataclass

from pfge.lab.data.datasets.part import DatasetPart
from pfge.lab.data.datasets.reader import Collate, Items
from pfge.lab.data.splits import Splits
from pfge.tasks import Task
from pfge.tasks.manifest import DEFAULT_TASK


@dataclass(frozen=True, eq=False)
class DatasetSplits:
    """Three Datasets with items (inputs, target).

    Inputs are a tensor, a tuple of the model's arguments or a dict of its keyword arguments. An item may draw
    from the global random numbers of Python, numpy and torch: they are seeded for it, by the run's seed,
    the epoch and its index, so what it draws is the same in every process and after a kill. A generator that
    the Dataset keeps itself is not.

    Attributes:
        train: A map-style `torch.utils.data.Dataset`.
        test: Another one.
        validation: Another one; None takes `data.validation` items out of `train`, which draw
            at random as they do there.
        classes: The names of the classes, or how many there are; 0 if the targets are not classes.
        collate: Makes inputs and targets of a batch from a list of items; torch's own function if None.
        task: What outputs and targets mean; one class for each item if not given.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from pfge.lab.data import DatasetSplits
        >>> rows = TensorDataset(torch.zeros(100, 5), torch.arange(100) % 2)
        >>> splits = DatasetSplits(rows, rows, classes=("no", "yes")).opened()
        >>> len(splits.train), splits.train.class_names, splits.channels
        (100, ('no', 'yes'), 5)
    """

    train: Items
    test: Items
    validation: Items | None = None
    classes: int | Sequence[str] = 0
    collate: Collate | None = None
    task: Task = DEFAULT_TASK

    def opened(self, workers: int = 0) -> Splits:
        """Return the splits that the lab works with.

        Args:
            workers: Processes that read items.

        Raises:
            DataError: A part is not a map-style Dataset.
        """
        numbered = isinstance(self.classes, int)
        names = tuple(map(str, range(self.classes) if numbered else self.classes))  # type: ignore[arg-type]
        train, test = (
            DatasetPart.of_all(items, name, names, self.collate, workers)
            for items, name in ((self.train, "training data"), (self.test, "test data"))
        )
        if self.validation is None:
            return Splits(train, train.select([]), test, task=self.task)
        validation = DatasetPart.of_all(self.validation, "validation data", names, self.collate, workers)
        return Splits(train, validation, test, task=self.task)
