"""Members with weights of their own, inputs for them, and what they predict."""

import torch
from torch import Tensor

from pfge import Weights
from pfge.weights import copy_weights, view_weights
from tests.toys import make_batch, make_mlp

X = make_batch(7, size=20)[0]


def make_members(count: int = 3) -> list[Weights]:
    return [copy_weights(view_weights(make_mlp(seed))) for seed in range(count)]


def expected(count: int = 3) -> Tensor:
    with torch.no_grad():
        return torch.stack([make_mlp(seed).eval()(X).softmax(dim=1) for seed in range(count)])
