"""Small made data that several tests share."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from pfge.lab.data.in_memory import ImageSet

CLASSES = ("a", "b", "c")


def random_images(
    count: int, *, channels: int = 3, height: int = 6, width: int = 5, seed: int = 0
) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, channels, height, width)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    return ImageSet(images, torch.arange(count) % len(CLASSES), CLASSES)


def write_pictures(folder: Path, count: int, *, width: int = 20, height: int = 16, seed: int = 0) -> None:
    """Writes pictures 0.png, 1.png, ... of random pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for number in range(count):
        pixels = random.integers(256, size=(height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
