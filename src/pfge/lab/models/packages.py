"""Classification models of torchvision and timm, and trained weights for another number of classes."""

import difflib
import importlib
import pickle
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlparse

import torch
from torch import Tensor, nn

from pfge.errors import InvalidValueError

DETECTION_OPERATORS = ("nms", "qnms")
SCALE_INPUTS = ("googlenet", "inception_v3")
"""Architectures whose trained weights expect inputs in another range, which they change themselves."""
DETECTION_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_torchvision() -> ModuleType:
    """Import torchvision, also with a torch version that its compiled operators do not fit."""
    try:
        return _import_package("torchvision")
    except RuntimeError:
        # Not before the first attempt: where the compiled operators load, these would clash with them.
        _declare_missing_detection_operators()
        return _import_package("torchvision")


def build_torchvision(
    architecture: str, *, classes: int, channels: int = 3, weights: str | None = None, **options: object
) -> nn.Module:
    """Build one of torchvision's classification models, untrained unless weights are named.

    Weights of another number of classes are used without their head, with a warning.

    Args:
        architecture: Name in torchvision, such as "resnet50".
        classes: Number of classes.
        channels: Number of channels of an image; torchvision's models take 3.
        weights: Name of trained weights, such as "IMAGENET1K_V1".
        **options: Passed on to torchvision.

    Raises:
        ValueError: An argument does not fit the model, or the trained weights cannot be loaded.
    """
    if channels != 3:
        raise InvalidValueError(
            f"torchvision's models take images of 3 channels, got {channels}; "
            "use a model of timm (timm:NAME), which adapts, or one of your own"
        )
    models = import_torchvision().models
    names = models.list_models(module=models)
    if architecture not in names:
        raise _unknown_name(architecture, "torchvision", names)
    trained = None if weights is None else _find_weights(models, architecture, weights)
    has_other_head = trained is not None and len(trained.meta["categories"]) != classes
    if has_other_head and architecture in SCALE_INPUTS:
        options = {"transform_input": True} | options
    try:
        model: nn.Module = models.get_model(
            architecture, weights=None if has_other_head else trained, num_classes=classes, **options
        )
        if trained is not None and has_other_head:
            found = trained.get_state_dict(progress=True, check_hash=True)
            _load_without_head(model, found, f"{weights} of torchvision:{architecture}", classes)
    except TypeError as error:
        raise InvalidValueError(
            f"torchvision:{architecture} does not take the options {options}: {error}; correct them"
        ) from error
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        if trained is None:
            raise
        file = Path(torch.hub.get_dir(), "checkpoints", Path(urlparse(trained.url).path).name)
        raise InvalidValueError(
            f"the weights {weights} of torchvision:{architecture} could not be loaded ({error}); "
            f"download {trained.url} and put the file at {file}"
        ) from error
    return model


def build_timm(architecture: str, *, classes: int, channels: int = 3, **options: object) -> nn.Module:
    """Build one of timm's models, untrained unless the options ask for `pretrained` weights.

    timm leaves out a head of another number of classes; a warning says so.

    Raises:
        ValueError: An argument does not fit the model, or the trained weights cannot be loaded.
    """
    import_torchvision()
    timm = _import_package("timm")
    if not timm.is_model(architecture):
        raise _unknown_name(architecture, "timm", timm.list_models())
    try:
        model: nn.Module = timm.create_model(architecture, num_classes=classes, in_chans=channels, **options)
    except TypeError as error:
        raise InvalidValueError(
            f"timm:{architecture} does not take the options {options}: {error}; correct them"
        ) from error
    except OSError as error:
        raise InvalidValueError(
            f"the weights of timm:{architecture} could not be loaded with the options {options} ({error}); "
            "download them elsewhere and give checkpoint_path=FILE in place of pretrained"
        ) from error
    except RuntimeError as error:
        if "checkpoint_path" not in options:
            raise
        raise InvalidValueError(
            f"{options['checkpoint_path']} does not fit timm:{architecture} of {classes} classes; give it as "
            "pretrain.weights in place of checkpoint_path, which leaves out a head of another number"
        ) from error
    trained = getattr(model, "pretrained_cfg", {}).get("num_classes", classes)
    if options.get("pretrained") and trained != classes:
        head = [f"{name}.*" for name in _classifiers(model)]
        warnings.warn(describe_new_head(f"timm:{architecture}", head, trained, classes), stacklevel=3)
    return model


def _classifiers(model: nn.Module) -> list[str]:
    names = getattr(model, "pretrained_cfg", {}).get("classifier", "its head")
    return [names] if isinstance(names, str) else list(names)


def _import_package(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise InvalidValueError(
            f'this model needs {package}, but {error.name} is not installed; pip install "pfge[models]"'
        ) from error


def _declare_missing_detection_operators() -> None:
    for operator in DETECTION_OPERATORS:
        if getattr(torch.ops.torchvision, operator, None) is None:
            torch.library.define(f"torchvision::{operator}", DETECTION_SCHEMA)


def _find_weights(models: ModuleType, architecture: str, weights: str) -> Any:
    known = models.get_model_weights(architecture).__members__
    if weights not in known:
        raise InvalidValueError(
            f"torchvision:{architecture} has no weights {weights!r}; choose from {', '.join(known)}"
        )
    return known[weights]


def _load_without_head(model: nn.Module, found: dict[str, Tensor], source: str, classes: int) -> None:
    head = other_head(found, model.state_dict(), classes)
    if head:
        warnings.warn(describe_new_head(source, head, len(found[head[0]]), classes), stacklevel=4)
    # Raises unless everything else fits.
    model.load_state_dict({name: model.state_dict()[name] if name in head else found[name] for name in found})


def _unknown_name(architecture: str, package: str, names: Iterable[str]) -> ValueError:
    close = difflib.get_close_matches(architecture.lower(), names)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "see the package's list_models()"
    return InvalidValueError(f"{package} has no model {architecture!r}; {hint}")


def other_head(found: Mapping[str, Tensor], own: Mapping[str, Tensor], classes: int) -> list[str]:
    """Return the names of trained tensors that belong to a head of another number of classes.

    These are the tensors whose first dimension alone differs from the model's, which has the number of its
    classes there. The list is empty if any other tensor differs in shape.

    Args:
        found: Trained weights by name.
        own: Weights of the model by name.
        classes: Number of classes of the model.
    """
    differing = [name for name in own if name in found and found[name].shape != own[name].shape]
    heads = {(len(found[name]), len(own[name])) for name in differing if found[name].ndim and own[name].ndim}
    is_head = len(heads) == 1 and all(
        found[name].shape[1:] == own[name].shape[1:] and len(own[name]) == classes for name in differing
    )
    return differing if is_head else []


def describe_new_head(source: str, names: list[str], trained: int, classes: int) -> str:
    """Return the message for a user whose weights have another head."""
    return (
        f"{source} has {trained} classes and the model {classes}: {', '.join(names)} are left out, and "
        "start untrained"
    )
