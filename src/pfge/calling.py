"""How a model is called on a batch when the user does not say."""

from typing import Any

from torch import Tensor, nn


def call_model(model: nn.Module, batch: Any) -> Any:
    """Call a model on a tensor, on a dict of keyword arguments, or on the first entry of a pair."""
    match batch:
        case Tensor():
            return model(batch)
        case dict():
            return model(**batch)
        case [first, *_]:
            return call_model(model, first)
    raise TypeError(
        f"a batch must be a tensor, a dict of keyword arguments, or a tuple or list that begins with one, "
        f"got {type(batch).__name__}; pass forward=, a function of the model and the batch"
    )
