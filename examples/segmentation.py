"""Compare methods on masks: a class for each pixel, and pixels that do not count.

Run it with `python examples/segmentation.py`; it takes some seconds. The images are made up: discs in noise.
Pixels at the edge of a disc are not labeled.
"""

import random
import tempfile

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from pfge.cli.main import main
from pfge.lab.data import DatasetSplits
from pfge.tasks import Classification

SIZE, UNLABELED = 24, 255


class Discs(Dataset):
    """Images [1, H, W] and masks [H, W]; in training, half of them are mirrored."""

    def __init__(self, count: int, seed: int, augment: bool = False):
        self.augment = augment
        generator = torch.Generator().manual_seed(seed)
        center = SIZE * (0.25 + 0.5 * torch.rand(count, 2, generator=generator))
        radius = 3 + 6 * torch.rand(count, generator=generator)
        y, x = torch.arange(SIZE)[:, None], torch.arange(SIZE)
        distance = torch.hypot(y - center[:, :1, None], x - center[:, 1:, None]) - radius[:, None, None]
        self.masks = (distance < 0).long()
        self.images = (self.masks + 0.8 * torch.randn(count, SIZE, SIZE, generator=generator))[:, None]
        self.masks[distance.abs() < 0.7] = UNLABELED

    def __len__(self) -> int:
        return len(self.masks)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self.images[index], self.masks[index]
        if self.augment and random.random() < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
        return image, mask


def load() -> DatasetSplits:
    return DatasetSplits(
        train=Discs(200, seed=1, augment=True),
        validation=Discs(50, seed=3),
        test=Discs(100, seed=2),
        classes=("ground", "disc"),
        task=Classification(ignore_index=UNLABELED),
    )


def make_model(classes: int, channels: int) -> nn.Module:
    def block(inputs: int, dilation: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, 8, 3, padding=dilation, dilation=dilation, bias=False)
        return [convolution, nn.BatchNorm2d(8), nn.ReLU()]

    return nn.Sequential(*block(channels, 1), *block(8, 2), *block(8, 4), nn.Conv2d(8, classes, 1))


if __name__ == "__main__":
    settings = "name=masks seeds=[1] data.name=segmentation:load model.name=segmentation:make_model"
    settings += " data.batch_size=20 data.evaluation_batch_size=50 pretrain.epochs=10"
    settings += " ensemble.cycle=1 ensemble.period=2 ensemble.length=8"
    folder = tempfile.mkdtemp(prefix="masks-")
    raise SystemExit(main(["compare", "--out", folder, *(f"--set={item}" for item in settings.split())]))
