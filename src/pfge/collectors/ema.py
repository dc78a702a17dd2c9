"""An exponential moving average of the weights."""

from pfge.collectors.averaging import OneMean, RunningMean
from pfge.collectors.base import require_whole
from pfge.weights import Weights


class EMA(OneMean):
    """Keep an exponential moving average of the weights, from the start point on: one member.

    At each update of the mean m, with the weights w of that iteration:

        m = decay * m + (1 - decay) * w,    m = w_0 at the start

    A point loses half of its share after log(1/2) / log(decay) updates: 693 with a decay of 0.999.

    Args:
        decay: The share of the old mean that stays at each update of it.
        every: Iterations between two updates of the mean.

    References:
        Tarvainen, Valpola, "Mean teachers are better role models", NeurIPS 2017.

    Example:
        From the start 0 to 0.5 * 0 + 0.5 * 4 = 2, and then to 0.5 * 2 + 0.5 * 8 = 5:

        >>> import torch
        >>> from pfge import EMA
        >>> collector = EMA(decay=0.5)
        >>> collector.begin({"w": torch.tensor(0.0)})
        >>> collector.observe(1, {"w": torch.tensor(4.0)})
        >>> collector.observe(2, {"w": torch.tensor(8.0)})
        >>> collector.members()
        [{'w': tensor(5.)}]
    """

    def __init__(self, decay: float, *, every: int = 1):
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}; 0.999 is usual")
        require_whole(every=every)
        if every < 1:
            raise ValueError(f"every must be at least 1 iteration, got {every}")
        super().__init__(average_start=True)
        self.decay = decay
        self.every = every

    def due(self, iteration: int) -> bool:
        """Return whether the mean moves at this iteration."""
        return iteration % self.every == 0

    def update(self, mean: RunningMean, weights: Weights) -> None:
        """Move the mean towards the weights."""
        mean.decay(weights, self.decay)
