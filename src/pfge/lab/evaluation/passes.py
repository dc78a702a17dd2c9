"""Ensembles whose members are passes of one model: test-time augmentation and MC dropout."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pfge.ensemble import Ensemble
from pfge.forward import call_model
from pfge.lab.data import Normalization
from pfge.lab.data.base import derive_seed
from pfge.lab.data.batches import Augmentation
from pfge.lab.models.networks import dropout_layers
from pfge.lab.session import Session
from pfge.storage.ensemble_folder import LazyMembers
from pfge.tasks import DEFAULT_TASK, Task
from pfge.views import Views, usual_views
from pfge.weights import Weights, count_bytes


def views_of(augmentation: Augmentation, normalization: Normalization, count: int) -> Views:
    """Return different views, as they occur in training: shifted by half of the crops' padding, or mirrored.

    The edges are filled with black.
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
        weights: The weights of the model.
        build_model: Returns a module of that architecture.
        views: One for each pass.
        task: The task of the ensemble.
        forward: Calls the model on a batch.
        method: The name of the method, for the manifest.
    """
    passes = _AugmentedPasses(weights, views, forward)
    members = LazyMembers(len(views), passes.begin, nbytes=count_bytes(weights))
    return Ensemble(members, build_model, task=task, method=method, forward=passes.forward)


class _AugmentedPasses:
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


def mc_dropout(
    weights: Weights,
    build_model: Callable[[], nn.Module],
    *,
    samples: int,
    seed: int,
    task: Task = DEFAULT_TASK,
    forward: Callable[[nn.Module, Any], Any] | None = None,
) -> Ensemble:
    """Return Monte Carlo dropout (Gal and Ghahramani, 2016) as an ensemble, in the memory of one model.

    A pass drops units by the seed, the number of the member and the number of the batch, so two readings of
    the same batches give the same predictions.

    Args:
        weights: The weights of the model.
        build_model: Returns a module of that architecture, with dropout.
        samples: How many passes are pooled.
        seed: Decides what is dropped.
        task: The task of the ensemble.
        forward: Calls the model on a batch; `call_model` if None.
    """
    passes = _DropoutPasses(weights, seed, forward or call_model)
    members = LazyMembers(samples, passes.begin, nbytes=count_bytes(weights))
    return Ensemble(members, build_model, task=task, method=f"MCDropout({samples})", forward=passes.forward)


class _DropoutPasses:
    """The one model's weights as every member, and its forward pass with dropout on.

    An ensemble asks for a member's weights whenever it begins to predict with it, and then calls `forward` on
    one batch after another. That is how the numbers of the member and of the batch are known here.
    """

    def __init__(self, weights: Weights, seed: int, forward: Callable[[nn.Module, Any], Any]):
        self._weights = weights
        self._seed = seed
        self._forward = forward
        self._member = self._batch = 0

    def begin(self, member: int) -> Weights:
        """Return the weights of a member, whose first batch comes next."""
        self._member, self._batch = member, 0
        return self._weights

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Call the model on the next batch of the member."""
        for layer in dropout_layers(model):
            layer.train()
        with torch.random.fork_rng():
            torch.manual_seed(derive_seed(self._seed, "dropped", self._member, self._batch))
            self._batch += 1
            return self._forward(model, batch)
