"""Test-time augmentation: several views of each image, unchanged, shifted by some pixels, and mirrored.

Example:
    >>> from pfge.views import usual_views
    >>> for view in usual_views(3, shift=2, mirror=True).views:
    ...     print(view)
    View(down=0, right=0, mirrored=False)
    View(down=0, right=0, mirrored=True)
    View(down=-2, right=0, mirrored=False)
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from pfge.errors import InvalidValueError
from pfge.forward import has_entries

__all__ = ["View", "Views", "usual_views"]

MOST_VIEWS = 256
"""Each view is a forward pass of every member, and a manifest may come from a stranger."""


@dataclass(frozen=True)
class View:
    """A view of an image: shifted down and to the right, then mirrored.

    Args:
        down: Pixels to shift down, or up if negative.
        right: Pixels to shift to the right, or to the left if negative.
        mirrored: Whether left and right are exchanged.

    Example:
        >>> import torch
        >>> from pfge.views import View
        >>> image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
        >>> View(down=1, mirrored=True).of(image)
        tensor([[[[0., 0.],
                  [2., 1.]]]])
    """

    down: int = 0
    right: int = 0
    mirrored: bool = False

    def __post_init__(self) -> None:
        if type(self.down) is not int or type(self.right) is not int or type(self.mirrored) is not bool:
            raise InvalidValueError(
                f"a view must be two integers and a bool, got {self}; pass for example View(down=2, right=-1)"
            )

    def of(self, images: Tensor, border: Sequence[float] = (0.0,)) -> Tensor:
        """Return this view of images [N, C, H, W].

        Args:
            images: Normalized images, as the model gets them.
            border: The value that fills the edges, for each channel, or one value for all.
        """
        if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point():
            raise InvalidValueError(
                f"views need images [N, C, H, W], got {_describe(images)}; use the ensemble without views"
            )
        _, channels, height, width = images.shape
        if len(border) not in (1, channels):
            raise InvalidValueError(
                f"border must have one value, or one for each of {channels} channels, got {border}"
            )
        if abs(self.down) >= height or abs(self.right) >= width:
            raise InvalidValueError(
                f"a view must shift images of {height} x {width} pixels by less than their size, got {self}"
            )
        reach = max(abs(self.down), abs(self.right))
        if reach:
            top, left = reach - self.down, reach - self.right
            parts = images.chunk(len(border), dim=1)
            padded = [pad(part, (reach,) * 4, value=color) for part, color in zip(parts, border, strict=True)]
            images = torch.cat(padded, dim=1)[:, :, top : top + height, left : left + width]
        return images.flip(3) if self.mirrored else images

    def of_batch(self, batch: Any, border: Sequence[float] = (0.0,)) -> Any:
        """Return this view of a batch, whose first entry, or all of it, is images."""
        if has_entries(batch):
            return (self.of_batch(batch[0], border), *batch[1:])
        return self.of(batch, border)


@dataclass(frozen=True)
class Views:
    """Several views of each image; every member of an `Ensemble` predicts them all.

    With K views v_k of an image x, a classifier f predicts

        p = (1 / K) * sum over k of softmax(f(v_k(x)))

    So an ensemble of one model does test-time augmentation, and an ensemble of several members predicts the
    mean over all members and views. Views are saved with an ensemble, and exported files contain them.

    Args:
        views: The views, for example those of `usual_views`; each is a forward pass.
        border: The value that fills the edges, for each channel or for all: usually black after the
            normalization, (0 - mean) / std.

    References:
        Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep Convolutional Neural Networks",
        NIPS 2012, for means over crops and mirrored images.

    Example:
        A model that looks for the brighter side of an image cannot decide between it and its mirror image:

        >>> import torch, pfge
        >>> from pfge.views import usual_views
        >>> def make_model():
        ...     return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2, bias=False))
        >>> views = usual_views(2, shift=0, mirror=True)
        >>> ensemble = pfge.Ensemble([{"1.weight": torch.eye(2)}], make_model, views=views)
        >>> ensemble.predict(torch.tensor([[[[0.0, 3.0]]]]))
        tensor([[0.5000, 0.5000]])
    """

    views: tuple[View, ...]
    border: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        if not self.views:
            raise InvalidValueError(
                "views must have at least one entry; use usual_views(4, shift=2, mirror=True)"
            )
        require_few_views(len(self.views))
        largest = sys.float_info.max  # whole numbers may be larger
        if not self.border or not all(
            isinstance(c, float | int) and -largest <= c <= largest for c in self.border
        ):
            raise InvalidValueError(f"border must be finite numbers, got {self.border!r}")

    def __len__(self) -> int:
        return len(self.views)

    def call(self, forward: Callable[[nn.Module, Any], Any], model: nn.Module, batch: Any) -> Tensor:
        """Return the logarithm of the mean probabilities, [N, C].

        Args:
            forward: Calls the model on a batch, and returns logits [N, C].
            model: The classifier.
            batch: Images [N, C, H, W], or a tuple or list that begins with them.
        """
        answers = [_log_probabilities(forward(model, v.of_batch(batch, self.border))) for v in self.views]
        return torch.stack(answers).logsumexp(dim=0) - math.log(len(answers))


def require_few_views(count: int) -> None:
    """Raise a ValueError if there are too many views to be evaluated."""
    if count > MOST_VIEWS:
        raise InvalidValueError(f"views must be at most {MOST_VIEWS}, got {count:,}; each is a forward pass")


def usual_views(count: int, *, shift: int, mirror: bool, border: Sequence[float] = (0.0,)) -> Views:
    """Return different views, beginning with the image itself.

    The views are the image itself and shifted up, down, left and right, each mirrored or not, so there may be
    fewer than `count`.

    Args:
        count: Maximum number of views; each costs a forward pass.
        shift: Number of pixels to shift by; usually half of the padding of the crops in training. 0 does not
            shift.
        mirror: Whether to mirror as well; usually if training did so.
        border: The value that fills the edges, as for `Views`.

    Example:
        >>> from pfge.views import usual_views
        >>> len(usual_views(99, shift=2, mirror=True)), len(usual_views(99, shift=0, mirror=True))
        (10, 2)
    """
    if count < 1 or shift < 0:
        raise InvalidValueError(f"count must be at least 1 and shift at least 0, got {count} and {shift}")
    moved = [(-shift, 0), (shift, 0), (0, -shift), (0, shift)] if shift else []
    mirrored = (False, True) if mirror else (False,)
    views = tuple(View(*place, flip) for place, flip in product([(0, 0), *moved], mirrored))
    return Views(views[:count], tuple(border))


def _log_probabilities(logits: Tensor) -> Tensor:
    if logits.ndim != 2:
        raise InvalidValueError(
            f"views need one class for each image, logits [N, C], got {_describe(logits)}; use the ensemble "
            "without views"
        )
    return logits.log_softmax(dim=1)


def _describe(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
