"""Whether the model, the data, the methods and the task of an experiment go together."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pfge.lab.config.schema import ConfigError
from pfge.lab.data import DataError, TensorSet
from pfge.lab.models.dropout import has_dropout
from pfge.methods import METHODS, base_of

if TYPE_CHECKING:
    from pfge.lab.session.session import Session


def require_fitting_model(session: "Session") -> None:
    """Call the model on an image, so that errors appear before the long work starts."""
    with torch.random.fork_rng(), torch.no_grad():
        model = session.build_model().eval()
        _require_trained_parameters(session, model)
        methods = [METHODS[base_of(row)] for row in session.experiment.ensemble.methods]
        augmented = [method.name for method in methods if method.path == "augmented"]
        if augmented and session.splits.normalization is None:
            raise ConfigError(
                f"{augmented[0]} needs pictures, and data.name = {session.experiment.data.name!r} has none; "
                "leave it out of ensemble.methods"
            )
        dropping = [method.name for method in methods if method.path == "start"]
        if dropping and not has_dropout(model):
            raise ConfigError(
                f"{dropping[0]} needs a model with dropout, and model.name = "
                f"{session.experiment.model.name!r} has none; leave it out of ensemble.methods, or give the "
                "model dropout in model.options"
            )
        inputs, targets = session.first_batch(1)
        outputs = _call(session, model, inputs)
        _require_finite_inputs(session, model)
        try:
            session.task.score(session.task.predictions(outputs).cpu(), targets.cpu())
        except (ValueError, RuntimeError) as error:
            raise ConfigError(
                f"model.name = {session.experiment.model.name!r} and data.name = "
                f"{session.experiment.data.name!r} must fit the task {session.task}: {_first_line(error)}; "
                "choose another by task.name"
            ) from None


def _require_trained_parameters(session: "Session", model: nn.Module) -> None:
    parameters = [*model.parameters()]
    if not any(parameter.requires_grad for parameter in parameters):
        raise ConfigError(
            f"model.name = {session.experiment.model.name!r} must have parameters to train, got "
            f"{len(parameters)} of which all are frozen; leave requires_grad of some of them True"
        )


def _call(session: "Session", model: nn.Module, inputs: Any) -> Any:
    try:
        return session.engine.forward(model, (inputs,))
    except Exception as error:  # it may be the user's code
        raise ConfigError(
            f"model.name = {session.experiment.model.name!r} must take the inputs of data.name = "
            f"{session.experiment.data.name!r}, which are {_describe(inputs)}: {_first_line(error)}"
        ) from error  # so that --traceback shows its place


def _require_finite_inputs(session: "Session", model: nn.Module) -> None:
    """Refuse NaN and infinity that reach the outputs; a user's model may replace them."""
    splits = session.splits
    for purpose, part in (
        ("training", splits.train),
        ("validation", splits.validation),
        ("testing", splits.test),
    ):
        if not isinstance(part, TensorSet) or (place := part.first_non_finite()) is None:
            continue
        inputs = part.select([place]).to(session.engine.device).inputs
        if not session.task.predictions(_call(session, model, inputs)).isfinite().all():
            value = float(inputs[~inputs.isfinite()][0])
            raise DataError(
                f"inputs must be finite, got {value} in example {place} of the {len(part):,} for {purpose}, "
                f"counted from 0 after data.name = {session.experiment.data.name!r} was split; correct them, "
                "or leave such examples out"
            )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _describe(inputs: Any) -> str:
    """Return the shapes of inputs, without the batch."""
    if isinstance(inputs, dict):
        return ", ".join(f"{name} {_describe(value)}" for name, value in inputs.items())
    if isinstance(inputs, tuple):
        return ", ".join(map(_describe, inputs))
    return str(list(inputs.shape[1:]) if isinstance(inputs, torch.Tensor) else inputs)
