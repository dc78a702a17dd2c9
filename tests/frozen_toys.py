"""A model with a frozen layer, and its training."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from pfge import Collector, Trajectory

X = torch.randn(5, 64, generator=torch.Generator().manual_seed(3))


def make_model() -> nn.Module:
    """A model of which the first layer, which is frozen, has 95 % of the numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    with torch.no_grad():
        model[0].weight[0, :2] = torch.tensor([-0.0, 0.0])
    return model


def make_trajectory(*collectors: Collector, model: nn.Module | None = None) -> Trajectory:
    model = model or make_model()
    return Trajectory(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), None, collectors)


def advance(trajectory: Trajectory, iterations: int, after: Callable[[int], None] = lambda _: None) -> None:
    for _ in range(iterations):
        inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(trajectory.iteration))
        trajectory.optimizer.zero_grad()
        (trajectory.model(inputs) - 1).square().mean().backward()
        trajectory.before_update()
        trajectory.optimizer.step()
        trajectory.after_update()
        after(trajectory.iteration)


def bytes_of_folder(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def classify(model: nn.Module, x: Tensor) -> Tensor:
    logit = model(x)
    return torch.cat([logit, -logit], dim=1)
