"""Stochastic weight averaging (the paper's Algorithm 1; Izmailov et al., 2018)."""

from pfge.collectors.averaging import OneMean, RunningMean
from pfge.collectors.base import require_cycle
from pfge.weights import Weights


class SWA(OneMean):
    """Keep the mean of the weights at the end of every cycle: one member.

    With w_0 the start point and w_i the weights after iteration i, the mean after n cycles of c iterations is

        (w_0 + w_c + w_2c + ... + w_nc) / (n + 1)

    Args:
        cycle: Iterations between two averaged points (the paper's c).
        phase: Where in the cycle they lie: at iterations i with i mod cycle = phase.
        average_start: Whether the start point counts once in the mean, as in the paper.

    References:
        Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", UAI 2018.
        Guo, Jin, Liu, "PFGE: Parsimonious Fast Geometric Ensembling of DNNs", ICIC 2023, Algorithm 1.

    Example:
        The mean of the start 0 and of the points 6 and 12:

        >>> import torch
        >>> from pfge import SWA
        >>> collector = SWA(cycle=2)
        >>> collector.begin({"w": torch.tensor(0.0)})
        >>> for iteration in range(1, 5):
        ...     collector.observe(iteration, {"w": torch.tensor(3.0 * iteration)})
        >>> collector.members()
        [{'w': tensor(6.)}]
    """

    def __init__(self, cycle: int, *, phase: int = 0, average_start: bool = True):
        require_cycle(cycle, phase)
        super().__init__(average_start=average_start)
        self.cycle = cycle
        self.phase = phase

    def due(self, iteration: int) -> bool:
        """Return whether a point of the cycle is reached."""
        return iteration % self.cycle == self.phase

    def update(self, mean: RunningMean, weights: Weights) -> None:
        """Count the weights in the mean."""
        mean.add(weights)
