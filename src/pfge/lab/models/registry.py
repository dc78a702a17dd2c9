"""Build a model from its name in an experiment."""

import difflib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from pfge.errors import InvalidValueError
from pfge.lab.models.networks import VGG16, CifarResNet, PreResNet, WideResNet, conv1d, mlp, small_conv
from pfge.lab.models.packages import build_timm, build_torchvision
from pfge.lab.user_functions import import_function, in_one_line, is_out_of_memory
from pfge.weights import Weights, require_same_layout, view_weights


class ModelBuildError(InvalidValueError):
    """The code of a model failed while it was built."""


@dataclass(frozen=True)
class Family:
    """Architectures that differ in their depth, step * blocks + offset, and perhaps in a width."""

    pattern: str
    step: int
    offset: int
    build: Callable[..., nn.Module]


FIXED: dict[str, Callable[..., nn.Module]] = {
    "vgg16": VGG16,
    "small_conv": small_conv,
    "conv1d": conv1d,
    "mlp": mlp,
}
PACKAGES = {"torchvision": build_torchvision, "timm": build_timm}
FAMILIES = (
    # Of up to four digits: the name may come from a stranger, and every block takes time and memory.
    Family(r"resnet([1-9]\d{0,3})", 6, 2, CifarResNet),
    Family(r"preresnet([1-9]\d{0,3})", 9, 2, PreResNet),
    Family(r"wideresnet([1-9]\d{0,3})-([1-9]\d{0,3})", 6, 4, WideResNet),
)
NAMESAKES = ("resnet50", "resnet152", "vgg16")
"""Names of networks for 32 x 32 pixels that ImageNet's, which are many times as large, have as well."""
EXAMPLES = (*FIXED, "resnet20", "resnet32", "resnet44", "resnet56", "preresnet164", "wideresnet28-10")


def available() -> tuple[str, ...]:
    """Return the names that `build_model` accepts, as readable patterns."""
    return (
        *FIXED,
        "resnetN with N = 6n+2 (resnet20)",
        "preresnetN with N = 9n+2 (preresnet164)",
        "wideresnetD-W with D = 6n+4 (wideresnet28-10)",
        "torchvision:NAME",
        "timm:NAME",
        "package.module:function",
    )


def build_model(name: str, *, classes: int, channels: int | None = 3, **options: object) -> nn.Module:
    """Build the model of that name.

    A function of your own (`package.module:function`) is called with those of `classes` and `channels`
    that it takes. Note that `resnet50` is the CIFAR network of that depth; ImageNet's is
    `torchvision:resnet50`.

    Args:
        name: One of the forms `available` lists.
        classes: Number of outputs: one for each class, or as many as a regression needs.
        channels: Number of channels of an image or a signal, or of features; None for other inputs.
        **options: Other parameters of this model, such as `dropout` for a WideResNet.

    Raises:
        ValueError: The name, a number or an option does not fit the model.
        ModelBuildError: The code of the model failed.
    """
    for quantity, value in (("classes", classes), ("channels", channels)):
        if value is not None and value < 1:
            raise InvalidValueError(
                f"{quantity} must be at least 1, got {value}; give the number your data has"
            )
    build = _find(name)
    signature = inspect.signature(build)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    offered = {"classes": classes} | ({} if channels is None else {"channels": channels})
    taken = {key: value for key, value in offered.items() if takes_any or key in signature.parameters}
    try:
        signature.bind(**taken, **options)
    except TypeError as error:
        raise InvalidValueError(
            f"model {name!r} cannot be built: {error}; its parameters are {signature}"
        ) from error
    try:
        model = build(**taken, **options)
    except ValueError:
        raise  # it says what to do
    except Exception as error:  # it may be the user's code
        if is_out_of_memory(error):
            raise
        raise ModelBuildError(
            f"model {name!r} cannot be built: {in_one_line(error)}; correct its code or options"
        ) from error
    if not isinstance(model, nn.Module):
        raise InvalidValueError(
            f"{name} must return a torch.nn.Module, got {type(model).__name__}; return the model"
        )
    return model


def require_fitting_members(
    weights: Weights, name: str, *, classes: int, channels: int | None, **options: object
) -> None:
    """Refuse a model whose tensors differ from the members', before it takes any memory.

    A function of your own is not called. For other models, the arguments are those of `build_model`.

    Raises:
        ValueError: Sizes, names or shapes differ.
    """
    numbers = sum(tensor.numel() for tensor in weights.values())
    for quantity, value in (("outputs", classes), ("channels", channels)):
        if value is not None and value > numbers:
            raise InvalidValueError(
                f"{quantity} must be at most the {numbers:,} numbers of a member, got {value:,}"
            )
    if is_own_function(name):
        return
    try:
        with torch.device("meta"):
            model = build_model(name, classes=classes, channels=channels, **options)
    except ModelBuildError:  # some models need the values of tensors to be built
        return
    require_same_layout(view_weights(model), weights, "the model", "the members")


def note_on(name: str) -> str | None:
    """Return a note on a name that is better known for another network."""
    if name not in NAMESAKES:
        return None
    return f"{name} is the network for CIFAR of that name; ImageNet's is torchvision:{name}"


def is_own_function(name: str) -> bool:
    """Return whether a model's name is a function to import, `package.module:function`."""
    source, colon, _ = name.partition(":")
    return bool(colon) and source not in PACKAGES


def _find(name: str) -> Callable[..., object]:
    if is_own_function(name):
        return import_function(name, "model")
    source, colon, architecture = name.partition(":")
    if colon:
        return partial(PACKAGES[source], architecture)
    if name in FIXED:
        return FIXED[name]
    for family in FAMILIES:
        if match := re.fullmatch(family.pattern, name):
            depth, *widths = map(int, match.groups())
            return partial(family.build, _count_blocks(name, depth, family), *widths)
    close = difflib.get_close_matches(name.lower(), EXAMPLES, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise InvalidValueError(f"unknown model {name!r}; {hint}choose from: {', '.join(available())}")


def _count_blocks(name: str, depth: int, family: Family) -> int:
    blocks, remainder = divmod(depth - family.offset, family.step)
    if blocks >= 1 and remainder == 0:
        return blocks
    depths = [family.step * count + family.offset for count in sorted({max(blocks, 1), max(blocks + 1, 1)})]
    nearest = " and ".join(name.replace(str(depth), str(fitting), 1) for fitting in depths)
    raise InvalidValueError(
        f"the depth must be {family.step}n+{family.offset}, got {depth} in {name!r}; nearest: {nearest} "
        "(ImageNet's networks are torchvision:NAME and timm:NAME)"
    )
