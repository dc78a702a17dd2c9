"""The optimizer that a setting names."""

import inspect

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from pfge.lab.config.schema import ConfigError, EnsembleSettings, PretrainSettings
from pfge.lab.user_functions import import_function


def make_optimizer(
    model: nn.Module, settings: PretrainSettings | EnsembleSettings, *, rate: float
) -> Optimizer:
    """Return the optimizer of a phase: the paper's SGD, AdamW, or one that a function of the user makes.

    A function is called with the model's parameters, and with those of `rate`, `momentum` and `weight_decay`
    that it takes. The schedule sets the rates in each iteration; groups keep the ratios of theirs.

    Args:
        model: Whose parameters it trains.
        settings: Name the optimizer, and have its momentum and weight decay.
        rate: The highest learning rate of the phase.

    Raises:
        ConfigError: The function cannot be imported or does not return an optimizer.
    """
    name = settings.optimizer
    if name == "sgd":
        return SGD(
            model.parameters(), lr=rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    if name == "adamw":
        return AdamW(model.parameters(), lr=rate, weight_decay=settings.weight_decay)
    try:
        make = import_function(name, "optimizer")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    offered = {"rate": rate, "momentum": settings.momentum, "weight_decay": settings.weight_decay}
    taken = {key: value for key, value in offered.items() if key in inspect.signature(make).parameters}
    optimizer = make(model.parameters(), **taken)
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"optimizer {name!r} must return a torch.optim.Optimizer, got {type(optimizer).__name__}; "
            "return the optimizer"
        )
    return optimizer
