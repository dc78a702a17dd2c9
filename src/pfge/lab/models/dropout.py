"""The layers of a model that drop units."""

from torch import nn
from torch.nn.modules.dropout import _DropoutNd


def dropout_layers(model: nn.Module) -> list[_DropoutNd]:
    """Return the dropout layers of a model."""
    return [layer for layer in model.modules() if isinstance(layer, _DropoutNd)]


def has_dropout(model: nn.Module) -> bool:
    """Return whether a model has dropout with a probability above 0."""
    return any(layer.p > 0 for layer in dropout_layers(model))
