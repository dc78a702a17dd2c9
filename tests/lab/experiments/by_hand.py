"""Methods of a tiny comparison run one by one, by hand, with nothing but the core."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfge import Collector, Ensemble, Trajectory, Triangular, Weights, follow, load_weights
from pfge.lab.data import Augmentation, Splits, TrainingBatches, training_batches
from pfge.lab.data.base import derive_seed
from pfge.lab.models import build_model
from tests.lab.tiny import LENGTH

CYCLE, LOW, HIGH = 2, 5e-4, 0.05
SEED = 1


def small_conv() -> nn.Module:
    model = build_model("small_conv", classes=10, channels=1)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def batches(digits: Splits, purpose: str) -> TrainingBatches:
    return training_batches(
        digits.train,
        digits.normalization,
        batch_size=50,
        seed=derive_seed(SEED, purpose),
        augmentation=Augmentation(0, False),
        channels_last=True,
    )


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def make_sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=HIGH, momentum=0.9, weight_decay=5e-4)


def run_alone(
    digits: Splits,
    w0: Weights,
    collector: Collector,
    schedule: Triangular = Triangular(CYCLE, LOW, HIGH),  # noqa: B008 - a frozen value
) -> list[Weights]:
    """Return the members of one method on a path of its own."""
    model = small_conv()
    load_weights(model, w0)
    trajectory = Trajectory(model, make_sgd(model), schedule, [collector])
    follow(trajectory, batches(digits, "ensembling").starting_after(0), loss, iterations=LENGTH)
    return list(collector.members())


def saved(folder: Path, method: str) -> list[Weights]:
    return list(Ensemble.load(folder / f"seed-{SEED}" / "ensembles" / method, small_conv).members)
