"""Test-time augmentation: each member is a pass of one model over pictures that are shifted and mirrored."""

from collections.abc import Callable
from typing import Any

from torch import nn

from pfge.ensemble import Ensemble
from pfge.lab.data import Normalization
from pfge.lab.data.in_memory.augmentation import Augmentation
from pfge.lab.session import Session
from pfge.storage.lazy_members import LazyMembers
from pfge.tasks import Task
from pfge.views import Views, usual_views
from pfge.weights import Weights, count_bytes


def views_of(augmentation: Augmentation, normalization: Normalization, count: int) -> Views:
    """Return different views, as they occur in training: moved by half of the crops' padding, or mirrored.

    What moves in at an edge is black before the normalization.
    """
    padding = augmentation.crop_padding
    black = [-mean / std for mean, std in zip(normalization.mean, normalization.std, strict=True)]
    return usual_views(count, shift=padding // 2 or padding, mirror=augmentation.flip, border=black)


def views_in(session: Session, count: int, purpose: str) -> Views:
    """Return at most so many views, as the training of an experiment had them; the purpose is for errors."""
    data, normalization = session.experiment.data, session.splits.normalization_for(purpose)
    return views_of(Augmentation(data.crop_padding, data.flip), normalization, count)


def augmented_passes(
    weights: Weights,
    build_model: Callable[[], nn.Module],
    views: Views,
    *,
    task: Task,
    forward: Callable[[nn.Module, Any], Any],
    method: str,
) -> Ensemble:
    """Return test-time augmentation as an ensemble, in the memory of one model, with a member for each view.

    An ensemble of the one model `in_views` predicts the same; this one tells what each view is worth.

    Args:
        weights: Of the one model.
        build_model: Returns a module of that architecture.
        views: One for each pass.
        task: As of an ensemble.
        forward: As of an ensemble.
        method: As of an ensemble.
    """
    passes = _Passes(weights, views, forward)
    members = LazyMembers(len(views), passes.begin, nbytes=count_bytes(weights))
    return Ensemble(members, build_model, task=task, method=method, forward=passes.forward)


class _Passes:
    """The one model's weights as every member; an ensemble asks for them when it begins with a member."""

    def __init__(self, weights: Weights, views: Views, forward: Callable[[nn.Module, Any], Any]):
        self._weights = weights
        self._views = views
        self._forward = forward
        self._view = views.views[0]

    def begin(self, member: int) -> Weights:
        """Return the weights of a member, whose batches come next."""
        self._view = self._views.views[member]
        return self._weights

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Call the model on a batch, seen as the member sees it."""
        return self._forward(model, self._view.of_batch(batch, self._views.border))
