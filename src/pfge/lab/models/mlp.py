"""A small network for tables."""

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
