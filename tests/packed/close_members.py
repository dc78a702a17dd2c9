"""Members close together, as those of one run, and inputs for them."""

import torch

from pfge import Weights
from pfge.weights import copy_weights, view_weights
from tests.toys import make_batch, make_mlp

X = make_batch(7, size=20)[0]


def close_members(count: int = 4, spread: float = 0.05) -> list[Weights]:
    """Members around one point, as those of one run; the counter of batches is the same in all."""
    members = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        member = copy_weights(view_weights(make_mlp()))
        for tensor in member.values():
            if tensor.is_floating_point():
                tensor += spread * torch.randn(tensor.shape, generator=generator).abs()
        members.append(member)
    return members
