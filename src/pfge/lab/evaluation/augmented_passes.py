"""Test-time augmentation: each member is a pass of one model over pictures that are shifted and mirrored."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from pfge.ensemble import Ensemble
from pfge.lab.data import Normalization
from pfge.lab.data.in_memory.augmentation import Augmentation
from pfge.storage.lazy_members import LazyMembers
from pfge.tasks import Task
from pfge.views import View, usual_views
from pfge.weights import Weights, count_bytes


def views_of(augmentation: Augmentation, count: int) -> tuple[View, ...]:
    """Return different views, as they occur in training: moved by half of the crops' padding, or mirrored."""
    padding = augmentation.crop_padding
    return usual_views(count, shift=padding // 2 or padding, mirror=augmentation.flip)


def black_border(normalization: Normalization) -> tuple[float, ...]:
    """Return what black is after a normalization, for each channel."""
    return tuple(-mean / std for mean, std in zip(normalization.mean, normalization.std, strict=True))


def augmented_passes(
    weights: Weights,
    build_model: Callable[[], nn.Module],
    views: Sequence[View],
    normalization: Normalization,
    *,
    task: Task,
    forward: Callable[[nn.Module, Any], Any],
    method: str,
) -> Ensemble:
    """Return test-time augmentation as an ensemble, in the memory of one model.

    Args:
        weights: Of the one model.
        build_model: Returns a module of that architecture.
        views: One for each pass.
        normalization: Of the pictures; what moves in at an edge is black before it.
        task: As of an ensemble.
        forward: As of an ensemble.
        method: As of an ensemble.
    """
    passes = _Passes(weights, views, normalization, forward)
    members = LazyMembers(len(views), passes.begin, nbytes=count_bytes(weights))
    return Ensemble(members, build_model, task=task, method=method, forward=passes.forward)


class _Passes:
    """The one model's weights as every member; an ensemble asks for them when it begins with a member."""

    def __init__(
        self,
        weights: Weights,
        views: Sequence[View],
        normalization: Normalization,
        forward: Callable[[nn.Module, Any], Any],
    ):
        self._weights = weights
        self._views = views
        self._forward = forward
        self._border = black_border(normalization)
        self._view = views[0]

    def begin(self, member: int) -> Weights:
        """Return the weights of a member, whose batches come next."""
        self._view = self._views[member]
        return self._weights

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Call the model on a batch, seen as the member sees it."""
        pictures, *rest = batch if isinstance(batch, tuple | list) else (batch,)
        seen = self._view.of(pictures, self._border)
        return self._forward(model, (seen, *rest))
