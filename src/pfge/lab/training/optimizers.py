"""The optimizer that a setting names."""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from pfge.lab.config.schema import ConfigError, EnsembleSettings, Experiment, PretrainSettings
from pfge.lab.session import Session
from pfge.lab.user_functions import import_function

Settings = PretrainSettings | EnsembleSettings
"""Of a phase that trains."""

BUILT_IN = ("sgd", "adamw")


def require_optimizers(experiment: Experiment) -> None:
    """Find the functions that an experiment names for its optimizers; nothing else is needed or written.

    Raises:
        ConfigError: One cannot be imported or needs other arguments.
    """
    for settings, rate in _phases(experiment):
        if settings.optimizer not in BUILT_IN:
            _find_function(settings, rate)


def try_optimizers(session: Session) -> None:
    """Make the optimizers of an experiment once, so that errors appear before the long work starts.

    No random number of training is used.

    Raises:
        ConfigError: As of `make_optimizer`.
    """
    with torch.random.fork_rng():
        model = session.build_model()
        for settings, rate in _phases(session.experiment):
            make_optimizer(model, settings, rate=rate)


def make_optimizer(model: nn.Module, settings: Settings, *, rate: float) -> Optimizer:
    """Return the optimizer of a phase: the paper's SGD, AdamW, or one that a function of the user makes.

    A function is called with the model's parameters, and with those of `rate`, `momentum` and `weight_decay`
    that it takes. The schedule sets the rates in each iteration; groups keep the ratios of theirs.

    Args:
        model: Whose parameters it trains.
        settings: Name the optimizer, and have its momentum and weight decay.
        rate: The highest learning rate of the phase.

    Raises:
        ConfigError: The function cannot be imported, needs other arguments, or does not return an optimizer.
    """
    name = settings.optimizer
    if name == "sgd":
        return SGD(
            model.parameters(), lr=rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    if name == "adamw":
        return AdamW(model.parameters(), lr=rate, weight_decay=settings.weight_decay)
    optimizer = _find_function(settings, rate)(model.parameters())
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"optimizer {name!r} must return a torch.optim.Optimizer, got {type(optimizer).__name__}; "
            "return the optimizer"
        )
    return optimizer


def _phases(experiment: Experiment) -> list[tuple[Settings, float]]:
    """Return the settings of the phases that surely train, and the highest rate of each."""
    start, ensemble = experiment.pretrain, experiment.ensemble
    phases: list[tuple[Settings, float]] = [(ensemble, ensemble.high)]
    # Weights of a file are trained only if their head does not fit, and then before anything else.
    return [(start, start.rate), *phases] if start.epochs and not start.weights else phases


def _find_function(settings: Settings, rate: float) -> Callable[[Iterable[nn.Parameter]], Any]:
    """Return the user's function with the settings that it takes: only the parameters are missing."""
    name = settings.optimizer
    try:
        make = import_function(name, "optimizer")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    offered = {"rate": rate, "momentum": settings.momentum, "weight_decay": settings.weight_decay}
    try:
        signature = inspect.signature(make)
        taken = {key: value for key, value in offered.items() if key in signature.parameters}
        signature.bind((), **taken)
    except (TypeError, ValueError) as error:  # a builtin may have no signature
        raise ConfigError(
            f"optimizer {name!r} must take the parameters and need no more than rate, momentum and "
            f"weight_decay, but {error}; rename its arguments, or give them defaults"
        ) from None
    return partial(make, **taken)
