"""Test-time augmentation: each member is a pass of one model over pictures that are shifted and mirrored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from pfge.ensemble import Ensemble
from pfge.lab.data import Normalization
from pfge.lab.data.in_memory.augmentation import Augmentation
from pfge.storage.lazy_members import LazyMembers
from pfge.tasks import Task
from pfge.weights import Weights, count_bytes


@dataclass(frozen=True)
class View:
    """How a picture is looked at: moved down and to the right by so many pixels, then mirrored."""

    down: int = 0
    right: int = 0
    mirrored: bool = False

    def of(self, pictures: Tensor, border: Tensor) -> Tensor:
        """Return normalized pictures [N, C, H, W] as they are seen; the border's color moves in."""
        reach = max(abs(self.down), abs(self.right))
        if reach:
            height, width = pictures.shape[2:]
            top, left = reach - self.down, reach - self.right
            padded = pad(pictures - border, (reach,) * 4) + border
            pictures = padded[:, :, top : top + height, left : left + width]
        return pictures.flip(3) if self.mirrored else pictures


def views_of(augmentation: Augmentation, count: int) -> list[View]:
    """Return different views, as they occur in training; the first is the picture as it is.

    There may be fewer than `count`: five places, half of the crops' padding apart, each mirrored or not.
    """
    half = augmentation.crop_padding // 2 or augmentation.crop_padding
    places = [(0, 0), (-half, 0), (half, 0), (0, -half), (0, half)] if half else [(0, 0)]
    mirrored = (False, True) if augmentation.flip else (False,)
    return [View(*place, flip) for place, flip in product(places, mirrored)][:count]


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
        mean, std = torch.tensor(normalization.mean), torch.tensor(normalization.std)
        self._border = (-mean / std).view(1, -1, 1, 1)
        self._view = views[0]

    def begin(self, member: int) -> Weights:
        """Return the weights of a member, whose batches come next."""
        self._view = self._views[member]
        return self._weights

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Call the model on a batch, seen as the member sees it."""
        pictures, *rest = batch if isinstance(batch, tuple | list) else (batch,)
        seen = self._view.of(pictures, self._border.to(pictures))
        return self._forward(model, (seen, *rest))
