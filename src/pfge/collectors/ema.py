"""An exponential moving average of the weights."""

from pfge.collectors.averaging import OneMean, RunningMean
from pfge.weights import Weights


class EMA(OneMean):
    """Keeps decay * mean + (1 - decay) * weights, from the start point on: one member.

    Args:
        decay: The share of the old mean that stays at each update of it.
        every: Iterations between two updates of the mean.
    """

    def __init__(self, decay: float, *, every: int = 1):
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}; 0.999 is usual")
        if every < 1:
            raise ValueError(f"every must be at least 1 iteration, got {every}")
        super().__init__(average_start=True)
        self.decay = decay
        self.every = every

    def due(self, iteration: int) -> bool:
        """Tell whether the mean moves at this iteration."""
        return iteration % self.every == 0

    def update(self, mean: RunningMean, weights: Weights) -> None:
        """Move the mean towards the weights."""
        mean.decay(weights, self.decay)
