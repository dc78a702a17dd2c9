"""Test-time augmentation: several views of each picture, as it is, moved by some pixels, and mirrored.

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
"""Each is a forward pass of every member, and a manifest may come from a stranger."""


@dataclass(frozen=True)
class View:
    """How a picture is looked at: moved down and to the right by so many pixels, then mirrored.

    Args:
        down: Pixels; upwards if below 0.
        right: Pixels; to the left if below 0.
        mirrored: Whether left and right are exchanged.

    Example:
        >>> import torch
        >>> from pfge.views import View
        >>> picture = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
        >>> View(down=1, mirrored=True).of(picture)
        tensor([[[[0., 0.],
                  [2., 1.]]]])
    """

    down: int = 0
    right: int = 0
    mirrored: bool = False

    def __post_init__(self) -> None:
        if type(self.down) is not int or type(self.right) is not int or type(self.mirrored) is not bool:
            raise InvalidValueError(
                f"a view must be two whole numbers and whether it is mirrored, got {self}"
            )

    def of(self, pictures: Tensor, border: Sequence[float] = (0.0,)) -> Tensor:
        """Return pictures [N, C, H, W] as they are seen.

        Args:
            pictures: As the model takes them.
            border: What moves in at the edges, for each channel, or one number for all.
        """
        if not isinstance(pictures, Tensor) or pictures.ndim != 4 or not pictures.is_floating_point():
            raise InvalidValueError(
                f"views are of pictures [N, C, H, W], got {_describe(pictures)}; leave them out"
            )
        _, channels, height, width = pictures.shape
        if len(border) not in (1, channels):
            raise InvalidValueError(
                f"border must have one number, or one for each of {channels} channels, got {border}"
            )
        if abs(self.down) >= height or abs(self.right) >= width:
            raise InvalidValueError(
                f"a view must leave a part of pictures of {height} x {width} pixels, got {self}"
            )
        reach = max(abs(self.down), abs(self.right))
        if reach:
            top, left = reach - self.down, reach - self.right
            parts = pictures.chunk(len(border), dim=1)
            padded = [pad(part, (reach,) * 4, value=color) for part, color in zip(parts, border, strict=True)]
            pictures = torch.cat(padded, dim=1)[:, :, top : top + height, left : left + width]
        return pictures.flip(3) if self.mirrored else pictures

    def of_batch(self, batch: Any, border: Sequence[float] = (0.0,)) -> Any:
        """Return a batch as it is seen, of which the first entry, or all of it, is pictures."""
        if has_entries(batch):
            return (self.of_batch(batch[0], border), *batch[1:])
        return self.of(batch, border)


@dataclass(frozen=True)
class Views:
    """Several views of each picture, in which every member of an `Ensemble` sees it.

    A classifier f that sees a picture x in K views predicts

        p = (1 / K) * sum over k of softmax(f(v_k(x)))

    So an ensemble of one model predicts what test-time augmentation does, and one of several members the mean
    over all members and views. Views are saved with an ensemble, and exported files contain them.

    Args:
        views: As of `usual_views`; each is a forward pass.
        border: What moves in at the edges, for each channel or for all: what black is after the
            normalization, (0 - mean) / std.

    References:
        Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep Convolutional Neural Networks",
        NIPS 2012, for means over crops and mirrored pictures.

    Example:
        A model that looks for the brighter side of a picture, and so is undecided between it and its mirror
        image:

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
                "views must be at least one, got none; take usual_views(4, shift=2, mirror=True)"
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
            batch: Of which the first entry, or all of it, is pictures [N, C, H, W].
        """
        answers = [_log_probabilities(forward(model, v.of_batch(batch, self.border))) for v in self.views]
        return torch.stack(answers).logsumexp(dim=0) - math.log(len(answers))


def require_few_views(count: int) -> None:
    """Raise a ValueError if there are too many views to be evaluated."""
    if count > MOST_VIEWS:
        raise InvalidValueError(f"views must be at most {MOST_VIEWS}, got {count:,}; each is a forward pass")


def usual_views(count: int, *, shift: int, mirror: bool, border: Sequence[float] = (0.0,)) -> Views:
    """Return different views; the first is the picture as it is.

    There may be fewer than `count`: the picture as it is and moved up, down, left and right, each
    mirrored or not.

    Args:
        count: How many at the most; each costs a forward pass.
        shift: By how many pixels pictures are moved; half of what the crops of the training move them is
            usual. 0 does not move them.
        mirror: Whether to mirror them as well, as when the training did so.
        border: As of `Views`.

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
            f"views are for one class for each picture, whose logits are [N, C], got {_describe(logits)}; "
            "leave them out"
        )
    return logits.log_softmax(dim=1)


def _describe(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
