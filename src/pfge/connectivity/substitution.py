"""A model used as if it had other weights."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.func import functional_call

from pfge.weights import Weights, canonical_name, in_memory_order_of, unwrap, view_weights

Result = TypeVar("Result")


def use_with_weights(model: nn.Module, weights: Weights, action: Callable[[nn.Module], Result]) -> Result:
    """Return what an action makes of a model that has other weights as long as the action lasts.

    The model's own tensors are not written.

    Args:
        model: The model.
        weights: All its parameters and persistent buffers by canonical name. The action may write into
            them; gradients reach them. Best in the model's own memory order, else they are copied into it.
        action: Takes the model.
    """
    module = unwrap(model)
    tensors: Weights = {}
    for name, parameter in module.named_parameters():
        tensors[f"module.{name}"] = in_memory_order_of(parameter, weights[canonical_name(name)])
    for name, buffer in module.named_buffers():
        given = weights.get(canonical_name(name))  # members do not hold temporary ones
        tensors[f"module.{name}"] = buffer.clone() if given is None else in_memory_order_of(buffer, given)
    result: Result = functional_call(_Holder(module, lambda: action(model)), tensors, ())
    return result


def require_values(model: nn.Module, weights: Weights) -> None:
    """Raise a ValueError if a call has changed one of these parameters of a model."""
    live = view_weights(model)
    for name, tensor in weights.items():
        if not torch.equal(live[name], tensor.to(live[name].device)):
            raise ValueError(
                f"a forward pass must leave the model's parameters as they are, but it changed {name}; "
                "change it in the training loop, or make it a buffer"
            )


class _Holder(nn.Module):
    """Makes an action the forward pass of a module, as functional_call wants it."""

    def __init__(self, module: nn.Module, action: Callable[[], Any]):
        super().__init__()
        self.module = module
        self.action = action

    def forward(self) -> Any:
        return self.action()
