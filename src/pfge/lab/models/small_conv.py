"""A convolutional network small enough for a demonstration on a laptop."""

from torch import nn


def small_conv(classes: int, channels: int = 3) -> nn.Sequential:
    """Return three convolutions with BatchNorm and a linear layer, for images of at least 8x8."""
    return nn.Sequential(
        *_block(channels, 16),
        nn.MaxPool2d(2),
        *_block(16, 32),
        nn.MaxPool2d(2),
        *_block(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def _block(inputs: int, width: int) -> tuple[nn.Module, ...]:
    # No bias, because BatchNorm has one.
    return nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
