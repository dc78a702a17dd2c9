"""Stochastic weight averaging (the paper's Algorithm 1; Izmailov et al., 2018)."""

from pfge.collectors.averaging import OneMean, RunningMean
from pfge.collectors.base import require_cycle
from pfge.weights import Weights


class SWA(OneMean):
    """Keeps the mean of the weights at the end of every cycle: one member.

    Args:
        cycle: Iterations between two averaged points (the paper's c).
        phase: Where in the cycle they lie: at iterations i with i mod cycle = phase.
        average_start: Whether the start point counts once in the mean, as in the paper.
    """

    def __init__(self, cycle: int, *, phase: int = 0, average_start: bool = True):
        require_cycle(cycle, phase)
        super().__init__(average_start=average_start)
        self.cycle = cycle
        self.phase = phase

    def due(self, iteration: int) -> bool:
        """Tell whether a point of the cycle is reached."""
        return iteration % self.cycle == self.phase

    def update(self, mean: RunningMean, weights: Weights) -> None:
        """Count the weights in the mean."""
        mean.add(weights)
