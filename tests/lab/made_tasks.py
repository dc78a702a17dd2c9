"""Small data sets of tasks other than one class for each image, and models for them."""

import torch
from torch import Tensor, nn

from pfge.lab.data import Splits
from pfge.lab.data.in_memory.tensor_set import TensorSet
from pfge.tasks import Classification, MultiLabel, Regression

PARTS = (120, 40, 60)
LABELS = ("red", "round", "heavy")
CLASSES = ("sky", "land", "sea")
IGNORED = 255


def numbers() -> Splits:
    """Return features and one number, which is linear in them but for noise; its own task is a regression."""
    inputs = _normal(0, sum(PARTS), 4)
    targets = inputs @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 0.3 * _normal(1, sum(PARTS))
    return Splits(*_parts(inputs, targets), task=Regression(noise="predicted"))


def labels() -> Splits:
    """Return features and three labels, each of which mostly depends on one of them."""
    inputs = _normal(2, sum(PARTS), 4)
    targets = (inputs[:, :3] + 0.5 * _normal(3, sum(PARTS), 3) > 0).long()
    return Splits(*_parts(inputs, targets, LABELS), task=MultiLabel())


def masks() -> Splits:
    """Return pictures of 6 x 6 pixels whose brightness decides the class of each; the border is ignored."""
    inputs = _normal(4, sum(PARTS), 1, 6, 6)
    targets = torch.bucketize(inputs[:, 0], torch.tensor([-0.5, 0.5]))
    targets[:, 0] = IGNORED
    return Splits(*_parts(inputs, targets, CLASSES), task=Classification(ignore_index=IGNORED))


def pixel_net(classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, classes, 1))


def _parts(inputs: Tensor, targets: Tensor, names: tuple[str, ...] = ()) -> list[TensorSet]:
    halves = zip(inputs.split(PARTS), targets.split(PARTS), strict=True)
    return [TensorSet(*half, names) for half in halves]


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
