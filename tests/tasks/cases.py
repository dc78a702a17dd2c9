"""A small model, members, inputs and targets for each task that the product has."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from pfge import Ensemble, Weights
from pfge.tasks import CausalLM, Classification, MultiLabel, Regression, Task


@dataclass
class Case:
    """A task, and what to try it with.

    Attributes:
        task: The task.
        build: Returns a new model.
        inputs: For the model.
        answers: Maps outputs to targets that agree with them.
        others: Maps outputs to targets that do not.
        by_hand: Maps the outputs of all members, [K, ...], to what is pooled, by plain torch.
    """

    task: Task
    build: Callable[[], nn.Module]
    inputs: Tensor
    answers: Callable[[Tensor], Tensor]
    others: Callable[[Tensor], Tensor]
    by_hand: Callable[[Tensor], Tensor]

    @cached_property
    def targets(self) -> Tensor:
        """Targets that the first member gets right four times of five, so that it can be calibrated."""
        (outputs,) = self.outputs(self.members(1))
        right, wrong = self.answers(outputs), self.others(outputs)
        fifth = torch.arange(right.numel()).view(right.shape) % 5 == 0
        targets = torch.where(fifth, wrong, right)
        if self.task == MASKS:
            targets[0, :3] = 255
        return targets

    def members(self, count: int = 3) -> list[Weights]:
        """Return weights near one another, as members of one run are."""
        generator = torch.Generator().manual_seed(1)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            start = self.build().state_dict()
        return [
            {
                name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
                for name, tensor in start.items()
            }
            for _ in range(count)
        ]

    def ensemble(self, count: int = 3) -> Ensemble:
        """Return an ensemble of such members."""
        return Ensemble(self.members(count), self.build, task=self.task)

    def outputs(self, members: list[Weights]) -> Tensor:
        """Return what a plain loop over members gets from the model, [K, ...]."""
        model = self.build().eval()
        found = []
        for member in members:
            model.load_state_dict(member)
            found.append(model(self.inputs).detach())
        return torch.stack(found)


class _Tagger(nn.Module):
    """Logits [N, T, 3] for inputs [N, T, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(4, 8, 3, padding=1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(x.transpose(1, 2)).relu().transpose(1, 2))


class _Gaussian(nn.Module):
    """Means and logarithms of variances [N, 2, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).view(-1, 2, 2)


def _mlp(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


def _segmenter() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 1))


def _mixture(means: Tensor, variances: Tensor) -> Tensor:
    return torch.stack([means.mean(0), variances.mean(0) + means.var(0, correction=0)], dim=-1)


def _second(dim: int) -> Callable[[Tensor], Tensor]:
    return lambda z: z.topk(2, dim=dim).indices.select(dim, 1)


G = torch.Generator().manual_seed(0)
ROWS = torch.randn(12, 4, generator=G)
MASKS = Classification(ignore_index=255)

CASES = {
    "rows": Case(
        Classification(),
        lambda: _mlp(3),
        ROWS,
        lambda z: z.argmax(dim=1),
        _second(1),
        lambda z: z.softmax(dim=2).mean(0),
    ),
    "masks": Case(
        MASKS,
        _segmenter,
        torch.randn(5, 2, 6, 7, generator=G),
        lambda z: z.argmax(dim=1),
        _second(1),
        lambda z: z.softmax(dim=2).mean(0),
    ),
    "tokens": Case(
        Classification(dim=-1),
        _Tagger,
        torch.randn(5, 6, 4, generator=G),
        lambda z: z.argmax(dim=2),
        _second(2),
        lambda z: z.softmax(dim=3).mean(0),
    ),
    "next tokens": Case(
        CausalLM(),
        _Tagger,
        torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(2)),
        lambda z: z.argmax(dim=2).roll(1, dims=1),  # the prediction at t is for the target at t + 1
        lambda z: _second(2)(z).roll(1, dims=1),
        lambda z: z.softmax(dim=3).mean(0),
    ),
    "labels": Case(
        MultiLabel(),
        lambda: _mlp(4),
        ROWS,
        lambda z: (z > 0).long(),
        lambda z: (z <= 0).long(),
        lambda z: z.sigmoid().mean(0),
    ),
    "fixed noise": Case(
        Regression(),
        lambda: _mlp(2),
        ROWS,
        lambda z: z + 0.1,
        lambda z: z - 0.5,
        lambda z: _mixture(z, torch.ones_like(z)),
    ),
    "predicted noise": Case(
        Regression(noise="predicted"),
        _Gaussian,
        ROWS,
        lambda z: z[..., 0] + 0.1,
        lambda z: z[..., 0] - 0.5,
        lambda z: _mixture(z[..., 0], z[..., 1].exp()),
    ),
}
