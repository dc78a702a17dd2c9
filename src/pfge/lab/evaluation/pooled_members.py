"""Pool members' predictions over a data set, with one member's predictions in memory at a time."""

import torch
from torch import Tensor

from pfge.calibration import Calibration
from pfge.tasks import Spread, Task


class PooledMembers:
    """Predictions pooled as an ensemble pools them, and what the lab reports beside them.

    Args:
        task: What the predictions mean.
        temperature: Of the pooled prediction, as an ensemble has it.
    """

    def __init__(self, task: Task, temperature: Calibration = 1.0):
        self.spread: Spread = task.spread()
        self._task = task
        self._temperature = temperature
        self._pool = task.pool()
        self._at_temperatures = torch.zeros(())
        self._members = 0

    def add(self, predictions: Tensor, temperature: Calibration = 1.0) -> None:
        """Add one more member's predictions.

        Args:
            predictions: As the member gives them.
            temperature: Its own, for the mean at temperatures.
        """
        self._pool.add(predictions)
        self.spread.add(predictions)
        # In the type of the predictions, which takes half the memory of the pool's.
        self._at_temperatures = self._at_temperatures + self._task.calibrate(predictions, temperature)
        self._members += 1

    @property
    def predictions(self) -> Tensor:
        """The pooled prediction."""
        return self._task.calibrate(self.plain, self._temperature)

    @property
    def plain(self) -> Tensor:
        """The pooled prediction without its temperature."""
        return self._pool.result()

    @property
    def at_temperatures(self) -> Tensor:
        """The mean of members each at its own temperature."""
        return self._at_temperatures / self._members

    def differences(self) -> dict[str, float]:
        """Return how much the members differ, by name."""
        return self.spread.metrics(self.plain)
