"""Models that curves are fitted between, of every kind that weights come in, and their losses."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.toys import make_mlp


class Point(nn.Module):
    """Two float64 weights."""

    def __init__(self, x: float = 0.0, y: float = 0.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([x, y], dtype=torch.float64))


def ring(model: nn.Module, _: Any) -> Tensor:
    """(x² + y² - 1)²: zero on the unit circle, 1 at the origin."""
    return (model.w.square().sum() - 1).square()


def bf16(seed: int) -> nn.Module:
    return make_mlp(seed).bfloat16()


def channels_last(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Unflatten(1, (1, 2, 2)),
            nn.Conv2d(1, 4, 2, padding=1),
            nn.BatchNorm2d(4),
            nn.Flatten(),
            nn.Linear(36, 3),
        )
    return model.to(memory_format=torch.channels_last)


class Tied(nn.Module):
    """Two layers that are one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())[:, :3]


class Recurrent(nn.Module):
    """Keeps references to its parameters in a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(1, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x[:, :, None])[0][:, -1]


def seeded(build: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    def make(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return build()

    return make


def spectral_norm() -> nn.Module:
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 3)))


def loss_in_its_type(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    dtype = next(model.parameters()).dtype
    return nn.functional.cross_entropy(model(batch[0].to(dtype)).float(), batch[1])


MODELS = {
    "batch norm and dropout": make_mlp,
    "bf16": bf16,
    "channels last": channels_last,
    "tied": seeded(Tied),
    "recurrent": seeded(Recurrent),
    "spectral norm": seeded(spectral_norm),
}


class Clamping(nn.Module):
    """Changes its own parameter, in a way that autograd does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.layer.weight.data.clamp_(-0.1, 0.1)
        return self.layer(x)
