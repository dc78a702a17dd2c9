"""Pool members' predictions over a data set, with one member's predictions in memory at a time."""

import torch
from torch import Tensor

from pfge.calibration import UNSCALED, Calibration, Temperatures
from pfge.tasks import MeanPool, Pool, Spread, Task


class PooledMembers:
    """Predictions pooled as an ensemble pools them, and what the lab reports beside them.

    Args:
        task: What the predictions mean.
        temperatures: Those of the ensemble: of the pooled prediction, and the weights of its members.
        targets: The true answers, by which ignored positions do not count in differences; all count if None.
    """

    def __init__(self, task: Task, temperatures: Temperatures = UNSCALED, targets: Tensor | None = None):
        self.spread: Spread = task.spread() if targets is None else task.spread_at(targets)
        self._task = task
        self._temperatures = temperatures
        self._members = 0
        self._pool = task.pool()
        self._at_temperatures: Pool = _ShortMean() if isinstance(self._pool, MeanPool) else task.pool()

    def add(self, predictions: Tensor, temperature: Calibration = 1.0) -> None:
        """Add one more member's predictions.

        Args:
            predictions: As the member gives them.
            temperature: Its own, for the mean at temperatures.
        """
        weight = self._temperatures.weight_of(self._members)
        self._members += 1
        self._pool.add(predictions, weight)
        self.spread.add(predictions, weight)
        self._at_temperatures.add(self._task.calibrate(predictions, temperature))

    @property
    def predictions(self) -> Tensor:
        """The pooled prediction."""
        return self._task.calibrate(self.plain, self._temperatures.pooled)

    @property
    def plain(self) -> Tensor:
        """The pooled prediction without its temperature."""
        return self._pool.result()

    @property
    def at_temperatures(self) -> Tensor:
        """The pooled prediction of members each at its own temperature."""
        return self._at_temperatures.result()

    def differences(self) -> dict[str, float]:
        """Return how much the members differ, by name."""
        return self.spread.metrics(self.plain)


class _ShortMean(MeanPool):
    """The mean in the type of the predictions, which takes half the memory of the pool's."""

    def __init__(self) -> None:
        self._short = torch.zeros(())
        self._count = 0.0

    def add(self, predictions: Tensor, weight: float = 1.0) -> None:
        self._short = self._short + weight * predictions
        self._count += weight

    def result(self) -> Tensor:
        return self._short / self._count
