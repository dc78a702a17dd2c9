"""A task that the product does not have: the model's one output is a number from 0 to 1."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from pfge.metrics.scores import Scores
from pfge.tasks import MeanPool, Metric, Task


class Range:
    """The least and the largest prediction of any member."""

    def __init__(self) -> None:
        self._seen: list[Tensor] = []

    def add(self, predictions: Tensor, weight: float = 1.0) -> None:  # noqa: ARG002
        self._seen.append(predictions)

    def metrics(self, pooled: Tensor) -> dict[str, float]:  # noqa: ARG002
        return {"range": (max(map(torch.max, self._seen)) - min(map(torch.min, self._seen))).item()}


@dataclass(frozen=True)
class Fractions(Task):
    """Outputs [N] as they are, rounded to some places."""

    places: int = 6
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("mse", "MSE", "lower", lambda s: s.brier.mean().item()),)

    def loss(self, outputs: Tensor, targets: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        return mse_loss(outputs, targets, reduction=reduction)

    def predictions(self, outputs: Any) -> Tensor:
        if outputs.ndim != 1:
            raise ValueError(f"the model must return numbers [N], got {list(outputs.shape)}")
        rounded: Tensor = outputs.round(decimals=self.places)
        return rounded

    def pool(self) -> MeanPool:
        return MeanPool()

    def diversity(self) -> Range:
        return Range()

    def score(self, predictions: Tensor, targets: Tensor) -> Scores:
        squares = (predictions - targets).double().square()
        return Scores(*[squares] * 5)

    def divergence(self, expected: Tensor, predictions: Tensor) -> float:
        return (expected - predictions).abs().max().item()

    def fit_calibration(self, predictions: Tensor, targets: Tensor) -> float:
        return (targets.mean() / predictions.mean()).item()

    def calibrate(self, predictions: Tensor, calibration: float) -> Tensor:
        return predictions * calibration
