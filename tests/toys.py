"""Small models and runs that several tests use."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pfge import Collector, Constant, Trajectory, Weights
from pfge.schedules import Schedule


class Scalar(nn.Module):
    """One float64 weight, so that a run can be compared with a scalar transcription."""

    def __init__(self, value: float):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(value, dtype=torch.float64))


def make_mlp(seed: int = 0, classes: int = 3) -> nn.Module:
    """A net with BatchNorm and dropout for inputs of 4 features."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, classes)
        )


def make_batch(iteration: int, size: int = 16) -> tuple[Tensor, Tensor]:
    """Inputs and targets that depend on the iteration alone."""
    generator = torch.Generator().manual_seed(iteration)
    inputs = torch.randn(size, 4, generator=generator)
    return inputs, (inputs.sum(dim=1) > 0).long() + (inputs[:, 0] > 1).long()


def classification_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def make_sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(
    model: nn.Module,
    collectors: Sequence[Collector],
    iterations: int,
    *,
    make_optimizer: Callable[[nn.Module], Optimizer] = make_sgd,
    schedule: Schedule | None = None,
) -> Trajectory:
    """Train a classifier of 4 features with collectors listening; every random number is fixed."""
    trajectory = Trajectory(model, make_optimizer(model), schedule or Constant(0.05), collectors)
    advance(trajectory, iterations)
    return trajectory


def advance(trajectory: Trajectory, iterations: int) -> None:
    trajectory.model.train()
    for _ in range(iterations):
        torch.manual_seed(trajectory.iteration)  # dropout's numbers are the loop's own to keep
        loss = classification_loss(trajectory.model, make_batch(trajectory.iteration + 1))
        trajectory.optimizer.zero_grad()
        loss.backward()
        trajectory.before_update()
        trajectory.optimizer.step()
        trajectory.after_update()


def assert_same_weights(first: Weights, second: Weights) -> None:
    """Assert equality bit for bit, with a message that names the tensor."""
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].dtype == second[name].dtype, name
        assert torch.equal(first[name], second[name]), name
