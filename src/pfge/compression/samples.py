"""The members and channels on which errors are measured: they stand for all."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pfge.weights import Weights

_SAMPLED_MEMBERS = 2  # their errors are much alike
_SAMPLED_NUMBERS = 1 << 14  # of each tensor


def sample_members(members: Sequence[Weights]) -> list[Weights]:
    """Return the first members, as many as stand for all of them."""
    return [members[number] for number in range(min(_SAMPLED_MEMBERS, len(members)))]


def sample_channels(tensors: Sequence[Tensor], mean: Tensor) -> slice | Tensor:
    """Return output channels, as many as stand for all of them.

    They are the first ones. Where members add nothing to the base in these, as in pruned channels, no width
    would gain anything; so they are then spread evenly over the channels in which members add something.
    """
    count = max(1, _SAMPLED_NUMBERS // max(1, mean.numel() // max(1, mean.shape[0])))
    base = mean if len(tensors) > 1 else torch.zeros_like(mean)  # one member is packed only without a base
    first = slice(count)
    if count >= len(mean) or any(bool(_differ(tensor[first], base[first]).any()) for tensor in tensors):
        return first
    differing = torch.stack([_differ(tensor, base).flatten(1).any(dim=1) for tensor in tensors]).any(dim=0)
    places = differing.nonzero()[:, 0]
    if len(places) <= count:
        return places if len(places) else first
    return places[torch.arange(count) * len(places) // count]


def _differ(tensor: Tensor, base: Tensor) -> Tensor:
    return tensor.to("cpu", torch.float32) != base
