"""Small models for tables, signals and demonstrations."""

from torch import nn


def mlp(classes: int, channels: int, width: int = 64, dropout: float = 0.0) -> nn.Sequential:
    """Return two hidden layers and a linear one.

    Args:
        classes: How many outputs it has.
        channels: How many features a row has.
        width: Units in a hidden layer.
        dropout: The probability with which a hidden unit is dropped in training.
    """
    return nn.Sequential(
        nn.Linear(channels, width),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(width, classes),
    )


def conv1d(classes: int, channels: int = 1, width: int = 32) -> nn.Sequential:
    """Return three convolutions with BatchNorm and a linear layer, for signals of at least 4 numbers.

    Args:
        classes: How many outputs it has.
        channels: How many numbers the signal has at each moment.
        width: Channels of each convolution.
    """
    return nn.Sequential(
        *_block_1d(channels, width),
        nn.MaxPool1d(2),
        *_block_1d(width, width),
        nn.MaxPool1d(2),
        *_block_1d(width, width),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(width, classes),
    )


def _block_1d(inputs: int, width: int) -> tuple[nn.Module, ...]:
    # No bias, because BatchNorm has one.
    return nn.Conv1d(inputs, width, 5, padding=2, bias=False), nn.BatchNorm1d(width), nn.ReLU(inplace=True)


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
