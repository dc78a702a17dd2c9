"""A Dataset that draws from every global generator, in the ways that users' own do."""

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from pfge.lab.data import DatasetSplits

CLASSES = 3


class Drawing(Dataset):  # type: ignore[type-arg]
    """Items of dict inputs; if it augments, each adds numbers of Python, numpy and torch."""

    def __init__(self, count: int, *, augment: bool = True, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.targets = torch.arange(count) % CLASSES
        self.values = torch.randn(count, 4, generator=generator) + self.targets[:, None]
        self.augment = augment

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], int]:
        values = self.values[index]
        if self.augment:
            values = values + torch.tensor([random.random(), np.random.rand(), torch.rand(()).item(), 0.0])
        return {"values": values, "number": torch.tensor(float(index))}, int(self.targets[index])


class Net(nn.Module):
    """A model of those inputs, with BatchNorm and dropout."""

    def __init__(self, classes: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, classes)
        )

    def forward(self, values: Tensor, number: Tensor) -> Tensor:
        return self.layers(values) + 0 * number[:, None]


def load() -> DatasetSplits:
    return DatasetSplits(
        train=Drawing(120),
        validation=Drawing(30, augment=False, seed=2),
        test=Drawing(30, augment=False, seed=1),
        classes=CLASSES,
    )
