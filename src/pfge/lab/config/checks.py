"""What the values of settings must be, each alone and together."""

from math import inf
from typing import TYPE_CHECKING, Any

from pfge.lab.config.settings import ConfigError
from pfge.methods import METHODS, base_of, known_rows

if TYPE_CHECKING:
    from pfge.lab.config.schema import Experiment

ABOVE_0 = (
    "data.batch_size",
    "data.evaluation_batch_size",
    "ensemble.cycle",
    "ensemble.period",
    "ensemble.length",
    "connect.length",
    "connect.rate",
    "connect.bends",
    "margins.points",
    "margins.nll",
    "margins.share",
    "engine.cpus",
    "engine.timeout",
)
AT_LEAST_0 = (
    "data.validation",
    "data.train_images",
    "data.test_images",
    "data.crop_padding",
    "data.image_size",
    "data.batch_norm_images",
    "data.workers",
    "pretrain.epochs",
    "pretrain.rate",
    "pretrain.momentum",
    "pretrain.weight_decay",
    "ensemble.momentum",
    "ensemble.weight_decay",
    "connect.momentum",
    "connect.weight_decay",
    "connect.images",
    "engine.checkpoint_seconds",
    "engine.gpus",
    "engine.memory",
)


def require_valid(experiment: "Experiment", values: dict[str, Any]) -> None:
    """Raise a ConfigError unless an experiment's settings, and `values` of them by key, are allowed."""
    ensemble, data = experiment.ensemble, experiment.data
    for key in ABOVE_0:
        if not 0 < values[key] < inf:  # written so that NaN fails too
            raise ConfigError(f"{key} must be above 0 and finite, got {values[key]}")
    for key in AT_LEAST_0:
        if not 0 <= values[key] < inf:
            raise ConfigError(f"{key} must be at least 0 and finite, got {values[key]}")
    if not 0 <= ensemble.low <= ensemble.high < inf:
        raise ConfigError(
            f"ensemble.low and ensemble.high must satisfy 0 <= low <= high and be finite, "
            f"got {ensemble.low} and {ensemble.high}"
        )
    if ensemble.length < ensemble.period or ensemble.period < ensemble.cycle:
        raise ConfigError(
            f"ensemble must have cycle <= period <= length, got {ensemble.cycle}, "
            f"{ensemble.period} and {ensemble.length}"
        )
    _require_valid_methods(experiment)
    experiment.task.make()
    _ = experiment.engine.chosen_launcher
    for key in ("pretrain.optimizer", "ensemble.optimizer"):
        if values[key] not in ("sgd", "adamw") and ":" not in values[key]:
            raise ConfigError(
                f"{key} must be sgd, adamw or a function, package.module:name, got {values[key]!r}"
            )
    if experiment.connect.points < 2:
        raise ConfigError(f"connect.points must be at least 2, the ends, got {experiment.connect.points}")
    if not 0 <= ensemble.ema_decay < 1:
        raise ConfigError(f"ensemble.ema_decay must be at least 0 and below 1, got {ensemble.ema_decay}")
    if not 0 <= ensemble.tail <= 1:
        raise ConfigError(f"ensemble.tail must be a share of an annealing, from 0 to 1, got {ensemble.tail}")
    if not experiment.seeds or len(set(experiment.seeds)) != len(experiment.seeds):
        raise ConfigError(f"seeds must be one or more different numbers, got {list(experiment.seeds)}")
    for key in ("model.options", "pretrain.options"):
        if taken := sorted({"name", "classes", "channels"} & values[key].keys()):
            raise ConfigError(f"{key} must leave {taken[0]} out, which model.name and the data decide")
    if len(data.mean) != len(data.std):
        raise ConfigError(f"data.mean and data.std go together, got {data.mean} and {data.std}")


def _require_valid_methods(experiment: "Experiment") -> None:
    ensemble, data, pretrain = experiment.ensemble, experiment.data, experiment.pretrain
    allowed = known_rows()
    unknown = [name for name in ensemble.methods if name not in allowed]
    if unknown:
        raise ConfigError(f"ensemble.methods must be among {', '.join(allowed)}, got {unknown[0]!r}")
    for method in (METHODS[base_of(name)] for name in ensemble.methods):
        if ensemble.length < method.least_cycles * ensemble.cycle:
            raise ConfigError(
                f"ensemble.length must be at least {method.least_cycles} cycles, as {method.name} needs "
                f"a point of each, got {ensemble.length} with a cycle of {ensemble.cycle}; or "
                "leave it out of ensemble.methods"
            )
        if method.base and method.base not in ensemble.methods:
            raise ConfigError(
                f"{method.name} uses the model of {method.base}, so ensemble.methods must have both, got "
                f"{', '.join(ensemble.methods)}; add {method.base}"
            )
        if method.path == "augmented" and not (data.flip or data.crop_padding):
            raise ConfigError(
                f"{method.name} shifts and mirrors pictures as in training, so data.crop_padding must be "
                "above 0 or data.flip true, got 0 and false; set one, or leave it out of ensemble.methods"
            )
        if method.path == "trainings" and (pretrain.weights or not pretrain.epochs):
            raise ConfigError(
                f"{method.name} trains every member from its own start, so pretrain.weights must be "
                f"empty and pretrain.epochs above 0, got pretrain.weights = {pretrain.weights!r}, "
                f"pretrain.epochs = {pretrain.epochs:g}; or leave it out of ensemble.methods"
            )
