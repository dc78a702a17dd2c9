"""Small data sets of tasks other than one class for each image, and models for them."""

import torch
from torch import Tensor, nn

from pfge.lab.data import DatasetSplits, Splits
from pfge.lab.data.in_memory import TensorSet
from pfge.tasks import Classification, MultiLabel, Regression

PARTS = (120, 40, 60)
LABELS = ("red", "round", "heavy")
CLASSES = ("sky", "land", "sea")
IGNORED = 255


def numbers() -> Splits:
    """Return features and one number, which is linear in them but for noise; its own task is a regression."""
    inputs = _normal(0, sum(PARTS), 4)
    targets = inputs @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 0.3 * _normal(1, sum(PARTS))
    return Splits(**_parts(inputs, targets), task=Regression(noise="predicted"))


def labels() -> Splits:
    """Return features and three labels, each of which mostly depends on one of them."""
    inputs = _normal(2, sum(PARTS), 4)
    targets = (inputs[:, :3] + 0.5 * _normal(3, sum(PARTS), 3) > 0).long()
    return Splits(**_parts(inputs, targets, LABELS), task=MultiLabel())


def masks() -> Splits:
    """Return pictures of 6 x 6 pixels whose brightness decides the class of each; the border is ignored."""
    inputs = _normal(4, sum(PARTS), 1, 6, 6)
    targets = torch.bucketize(inputs[:, 0], torch.tensor([-0.5, 0.5]))
    targets[:, 0] = IGNORED
    return Splits(**_parts(inputs, targets, CLASSES), task=Classification(ignore_index=IGNORED))


def named() -> DatasetSplits:
    """Return two classes whose inputs are dicts of tensors by name."""
    return _named(5, shift=0.0, names=("left", "right"))


def named_elsewhere() -> DatasetSplits:
    """Return inputs with the names of `named`, far from them."""
    return _named(6, shift=8.0, names=("left", "right"))


def named_otherwise() -> DatasetSplits:
    """Return inputs of other names than those of `named`."""
    return _named(7, shift=0.0, names=("top", "right"))


def named_wider() -> DatasetSplits:
    """Return inputs with the names of `named` that its model cannot take."""
    return _named(8, shift=0.0, names=("left", "right"), width=5)


def _named(seed: int, shift: float, names: tuple[str, str], width: int = 2) -> DatasetSplits:
    inputs = _normal(seed, sum(PARTS), 2 * width) + shift
    targets = inputs.mean(dim=1) + 0.3 * _normal(seed + 10, len(inputs)) > shift
    items = [
        (dict(zip(names, row.split(width), strict=True)), int(target))
        for row, target in zip(inputs, targets, strict=True)
    ]
    train, validation, test = items[: PARTS[0]], items[PARTS[0] : -PARTS[2]], items[-PARTS[2] :]
    return DatasetSplits(train=train, test=test, validation=validation, classes=("low", "high"))


class NamedNet(nn.Module):
    """A linear model of inputs by name."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, classes)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        logits: Tensor = self.linear(torch.cat((left, right), dim=1))
        return logits


def pixel_net(classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, classes, 1))


def _parts(inputs: Tensor, targets: Tensor, names: tuple[str, ...] = ()) -> dict[str, TensorSet]:
    parts = zip(("train", "validation", "test"), inputs.split(PARTS), targets.split(PARTS), strict=True)
    return {name: TensorSet(*part, names) for name, *part in parts}


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
