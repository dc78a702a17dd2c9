"""The training that every integration runs, and the bare loop that they are compared with."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from pfge import EMA, FGE, PFGE, SWA, SWAG, Collector, Trajectory, Triangular
from pfge.schedules import Schedule
from tests.toys import assert_same_weights

BATCH = 8
SCHEDULE = Triangular(2, 0.01, 0.1)


def make_collectors(folder: Path | None = None) -> list[Collector]:
    """Return one of each, which keep their members in memory or in folders below this one."""
    stores = [folder and folder / name for name in ("pfge", "fge")]
    return [
        PFGE(2, 4, store=stores[0]),
        SWA(2),
        EMA(0.8),
        FGE(3, store=stores[1]),
        SWAG(2, rank=2, samples=2),
    ]


class Net(nn.Module):
    """A classifier that returns its loss, as the trainers' models do."""

    def __init__(self, *, batch_norm: bool = True, dropout: float = 0.0):
        super().__init__()
        norm = nn.BatchNorm1d(6) if batch_norm else nn.Identity()
        self.layers = nn.Sequential(nn.Linear(4, 6), norm, nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, labels: Tensor, factor: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.layers(x))
        loss = nn.functional.cross_entropy(logits, labels) * factor.max()
        return {"loss": loss, "logits": logits}


class Examples(Dataset[dict[str, Tensor]]):
    """Inputs, labels, and what the loss of an example's batch is multiplied by."""

    def __init__(self, batches: int, overflowing: Sequence[int]):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(batches * BATCH, 4, generator=generator)
        self.labels = (self.x.sum(dim=1) > 0).long() + (self.x[:, 0] > 1).long()
        self.factor = torch.ones(batches * BATCH)
        for batch in overflowing:
            self.factor[batch * BATCH] = inf

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.labels[index], "factor": self.factor[index]}


@dataclass(frozen=True)
class Problem:
    """What is trained.

    Args:
        batches: In an epoch.
        epochs: How often they are read, in the same order.
        accumulate: Batches in an update; the last update of an epoch may have fewer.
        overflowing: Batches with infinite gradients, which a gradient scaler skips.
        batch_norm: Whether the model has BatchNorm.
        dropout: The model's.
        decay: Whether a scheduler of torch's lowers the rate in each update.
        processes: How many train together; each batch is one process's, and each process has its turn.
    """

    batches: int = 10
    epochs: int = 2
    accumulate: int = 1
    overflowing: tuple[int, ...] = ()
    batch_norm: bool = True
    dropout: float = 0.0
    decay: bool = False
    processes: int = 1

    def make_model(self) -> Net:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Net(batch_norm=self.batch_norm, dropout=self.dropout)

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """Two groups whose rates are as 1 to 2."""
        named = list(model.named_parameters())
        head = [parameter for name, parameter in named if "head" in name]
        rest = [parameter for name, parameter in named if "head" not in name]
        return torch.optim.SGD([{"params": rest}, {"params": head, "lr": 0.1}], lr=0.05, momentum=0.9)

    def make_scheduler(self, optimizer: Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9 if self.decay else 1.0)

    def make_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=bool(self.overflowing))

    def examples(self) -> Examples:
        return Examples(self.batches, self.overflowing)

    def loader(self) -> DataLoader[dict[str, Tensor]]:
        return DataLoader(self.examples(), batch_size=BATCH)

    def own_batches(self) -> list[dict[str, Tensor]]:
        """Return the batches of an epoch that this process trains on."""
        rank = distributed.get_rank() if distributed.is_initialized() else 0
        return list(self.loader())[rank :: self.processes]

    def windows(self) -> Iterator[list[dict[str, Tensor]]]:
        """Yield the batches of each update of an epoch, as this process sees it."""
        batches = self.own_batches()
        for start in range(0, len(batches), self.accumulate):
            yield batches[start : start + self.accumulate]


Divisor = Callable[[Problem, Sequence[object]], int]


def by_accumulation(problem: Problem, window: Sequence[object]) -> int:  # noqa: ARG001
    return problem.accumulate


def by_window(problem: Problem, window: Sequence[object]) -> int:  # noqa: ARG001
    return len(window)


def train_bare(
    problem: Problem,
    schedule: Schedule | None,
    collectors: Sequence[Collector],
    divisor: Divisor = by_accumulation,
) -> Trajectory:
    """Train in a loop that calls nothing but torch and the trajectory.

    Args:
        problem: What is trained.
        schedule: As in `Trajectory`.
        collectors: As in `Trajectory`.
        divisor: What the losses of a window are divided by: trainers differ where it is short.
    """
    model = problem.make_model()
    optimizer, scaler = problem.make_optimizer(model), problem.make_scaler()
    trajectory = Trajectory(model, optimizer, schedule, collectors)
    for _ in range(problem.epochs):
        for window in problem.windows():
            optimizer.zero_grad()
            for batch in window:
                scaler.scale(model(**batch)["loss"] / divisor(problem, window)).backward()
            trajectory.before_update()
            scaler.step(optimizer)
            scaler.update()
            trajectory.after_update()
    return trajectory


def assert_same_members(found: Sequence[Collector], expected: Sequence[Collector]) -> None:
    """Assert that collectors have the same members of the same iterations, bit for bit."""
    for one, other in zip(found, expected, strict=True):
        assert one.iterations == other.iterations, one
        assert len(one.members()) > 0, one
        for member, reference in zip(one.members(), other.members(), strict=True):
            assert_same_weights(member, reference)
