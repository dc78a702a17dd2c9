"""Trained weights for another number of classes: the head is left out, everything else must fit."""

from collections.abc import Mapping

from torch import Tensor


def other_head(found: Mapping[str, Tensor], own: Mapping[str, Tensor], classes: int) -> list[str]:
    """Return the names of trained tensors that belong to a head of another number of classes.

    These are the tensors whose first dimension alone differs from the model's, which has the number of its
    classes there. There are none if any other tensor differs in shape.

    Args:
        found: The trained weights by name.
        own: Those of the model.
        classes: How many the model has.
    """
    differing = [name for name in own if name in found and found[name].shape != own[name].shape]
    heads = {(len(found[name]), len(own[name])) for name in differing if found[name].ndim and own[name].ndim}
    is_head = len(heads) == 1 and all(
        found[name].shape[1:] == own[name].shape[1:] and len(own[name]) == classes for name in differing
    )
    return differing if is_head else []


def describe_new_head(source: str, names: list[str], trained: int, classes: int) -> str:
    """Return what to tell the user whose weights have another head."""
    return (
        f"{source} has {trained} classes and the model {classes}: {', '.join(names)} are left out, and "
        "start untrained"
    )
