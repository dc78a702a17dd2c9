"""A convolutional network for short signals."""

from torch import nn


def conv1d(classes: int, channels: int = 1, width: int = 32) -> nn.Sequential:
    """Return three convolutions with BatchNorm and a linear layer, for signals of at least 4 numbers.

    Args:
        classes: How many outputs it has.
        channels: How many numbers the signal has at each moment.
        width: Channels of each convolution.
    """
    return nn.Sequential(
        *_block(channels, width),
        nn.MaxPool1d(2),
        *_block(width, width),
        nn.MaxPool1d(2),
        *_block(width, width),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(width, classes),
    )


def _block(inputs: int, width: int) -> tuple[nn.Module, ...]:
    # No bias, because BatchNorm has one.
    return nn.Conv1d(inputs, width, 5, padding=2, bias=False), nn.BatchNorm1d(width), nn.ReLU(inplace=True)
