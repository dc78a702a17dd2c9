"""Make w0: train it, or load it from a checkpoint."""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from pfge.lab.config.settings import ConfigError, EnsembleSettings, Experiment, PretrainSettings, expand_user
from pfge.lab.data.base import derive_seed
from pfge.lab.evaluation.evaluate import evaluate_on
from pfge.lab.run.folder import record_weights_hash, require_same_weights
from pfge.lab.run.progress import Reporter
from pfge.lab.run.results import StartWeights
from pfge.lab.session import Session, open_session
from pfge.lab.training.checkpoint_files import load_start_weights
from pfge.lab.training.resumable import Training, train_resumable
from pfge.lab.user_functions import import_function
from pfge.schedules import pretraining_schedule
from pfge.storage.files import StorageError, checksum, read_recorded, write_recorded
from pfge.trajectory import Trajectory
from pfge.weights import Weights, require_same_layout, view_weights

Settings = PretrainSettings | EnsembleSettings
"""Settings of a training phase."""

BUILT_IN = ("sgd", "adamw")


def require_optimizers(experiment: Experiment) -> None:
    """Import the optimizer functions that an experiment names, without data; nothing is written.

    Raises:
        ConfigError: A function cannot be imported or needs other arguments.
    """
    for settings, rate in _phases(experiment):
        if settings.optimizer not in BUILT_IN:
            _find_function(settings, rate)


def try_optimizers(session: Session) -> None:
    """Make the optimizers of an experiment once, to find errors before the long work starts.

    The random state of training does not change.

    Raises:
        ConfigError: See `make_optimizer`.
    """
    with torch.random.fork_rng():
        model = session.build_model()
        for settings, rate in _phases(session.experiment):
            make_optimizer(model, settings, rate=rate)


def make_optimizer(model: nn.Module, settings: Settings, *, rate: float) -> Optimizer:
    """Return the optimizer of a phase: the paper's SGD, AdamW, or one that a function of the user makes.

    A function is called with the model's parameters, and with `rate`, `momentum` and `weight_decay` if it has
    parameters of these names. The schedule sets the rates in each iteration; groups keep their ratios.

    Args:
        model: The model to train.
        settings: The optimizer's name, momentum and weight decay.
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
    """Return the settings and the highest rate of each phase that always trains."""
    start, ensemble = experiment.pretrain, experiment.ensemble
    phases: list[tuple[Settings, float]] = [(ensemble, ensemble.high)]
    # Weights from a file are trained only if their head does not fit, before anything else.
    return [(start, start.rate), *phases] if start.epochs and not start.weights else phases


def _find_function(settings: Settings, rate: float) -> Callable[[Iterable[nn.Parameter]], Any]:
    """Return the user's function with its settings bound; only the parameters are missing."""
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
            f"optimizer {name!r} must accept the parameters, and require no other arguments than rate, "
            f"momentum and weight_decay, but {error}; rename its arguments, or give them defaults"
        ) from None
    return partial(make, **taken)


CHECKPOINT = "pretrain.checkpoint"


def pretrain(experiment: Experiment, path: Path, reporter: Reporter) -> list[StartWeights]:
    """Make w0 for every seed in a run folder, for a later comparison, and measure it."""
    with open_session(experiment, path, reporter) as session:
        return [_find_and_measure(session, seed) for seed in experiment.seeds]


def find_w0(session: Session, seed: int, number: int = 1) -> Weights:
    """Return the start weights of a seed; they are made once and stay in the run folder.

    Args:
        session: The experiment.
        seed: The seed.
        number: Number of the training, from 1; a deep ensemble uses the second and later ones.
    """
    session.folder.of_seed(seed)
    path = session.folder.w0(seed, number)
    found = path.exists()
    session.engine.wait_for_all()  # no process writes before all have checked
    if not found:
        model = _make_w0(session, seed, number)
        session.engine.on_rank_zero(lambda: write_recorded(path, view_weights(model)))
    return read_recorded(path)


def read_w0(session: Session, seed: int) -> Weights:
    """Return the start weights in the run folder, without training or importing any.

    Raises:
        StorageError: They are missing or damaged.
    """
    path = session.folder.w0(seed)
    if not path.exists():
        raise StorageError(
            f"{session.folder.path} has no w0 for seed {seed} yet; "
            f"run pfge compare --out {session.folder.path} to its end"
        )
    return read_recorded(path)


def _find_and_measure(session: Session, seed: int) -> StartWeights:
    ensemble = session.make_ensemble([find_w0(session, seed)])
    # An interrupted training has left a checkpoint, which nothing needs now.
    session.engine.on_rank_zero(lambda: (session.folder.of_seed(seed) / CHECKPOINT).unlink(missing_ok=True))
    measured = {
        part: evaluate_on(session, ensemble, data, f"seed {seed}: w0 on {part}").growing[-1]
        for part, data in session.splits.for_evaluation().items()
    }
    return StartWeights(seed, session.folder.w0(seed), measured, session.task)


def pretraining_iterations(session: Session, seed: int) -> int:
    """Return the number of updates for training w0."""
    return session.experiment.pretrain.iterations(session.batches(seed, "pretraining").per_epoch)


def _make_w0(session: Session, seed: int, number: int) -> nn.Module:
    recipe = session.experiment.pretrain
    if recipe.weights:
        model = session.build_seeded_model(seed)
        classes = len(session.splits.train.class_names)
        path = expand_user(recipe.weights, "pretrain.weights")
        head = load_start_weights(model, path, classes)
        used = checksum(path)
        require_same_weights(session.folder, path, used)
        session.engine.on_rank_zero(lambda: record_weights_hash(session.folder, path, used))
        if head:
            _train_new_head(session, seed, model)
        return model
    own_seed = seed if number == 1 else derive_seed(seed, "deep ensemble", number)
    model = session.build_seeded_model(own_seed, **recipe.options)
    if recipe.options:
        _check_that_members_can_start_there(session, model)
    if recipe.epochs:
        checkpoint = CHECKPOINT if number == 1 else f"pretrain-{number}.checkpoint"
        name = "w0" if number == 1 else f"start {number}"
        _train(
            session, own_seed, model, session.folder.of_seed(seed) / checkpoint, f"seed {seed}: find {name}"
        )
    return model


def _train_new_head(session: Session, seed: int, model: nn.Module) -> None:
    if not session.experiment.pretrain.epochs:
        raise ConfigError(
            "the head of pretrain.weights has another number of classes, so the model's own head is not "
            "trained; set pretrain.epochs above 0 to train it"
        )
    _train(session, seed, model, session.folder.of_seed(seed) / CHECKPOINT, f"seed {seed}: find w0")


def _check_that_members_can_start_there(session: Session, model: nn.Module) -> None:
    without = view_weights(session.build_seeded_model(0))
    try:
        require_same_layout(without, view_weights(model), "the model", "w0")
    except ValueError as error:
        raise ConfigError(
            f"pretrain.options must not change the names or shapes of the model's weights, but {error}; "
            "put options that change them in model.options"
        ) from None


def _train(session: Session, seed: int, model: nn.Module, checkpoint: Path, name: str) -> None:
    recipe = session.experiment.pretrain
    source = session.batches(seed, "pretraining")
    iterations = pretraining_iterations(session, seed)
    optimizer = make_optimizer(model, recipe, rate=recipe.rate)
    trajectory = Trajectory(model, optimizer, pretraining_schedule(iterations, recipe.rate), [])
    train_resumable(session, trajectory, source, Training(name, seed, iterations, checkpoint))
