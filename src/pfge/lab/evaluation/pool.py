"""Members' predictions over a data set, pooled one by one: those of one member at a time are in memory."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pfge.calibration import scale_probabilities
from pfge.metrics.uncertainty import predictive_entropy


class Pool:
    """The mean of members' probabilities, and what they disagree about.

    Args:
        temperature: Of the mean, as an ensemble has it.
    """

    def __init__(self, temperature: float = 1.0):
        self.members = 0
        self._temperature = temperature
        self._total = self._at_temperatures = self._entropy = self._votes = torch.zeros(())

    def add(self, probabilities: Tensor, temperature: float = 1.0) -> None:
        """Let one more member's predictions join, [N, C].

        Args:
            probabilities: As the member gives them.
            temperature: Its own, for the mean at temperatures.
        """
        entropy = predictive_entropy(probabilities)
        if self.members and probabilities.shape != self._total.shape:
            raise ValueError(
                f"every member must predict the same inputs and classes, got {list(self._total.shape)} and "
                f"then {list(probabilities.shape)}"
            )
        self.members += 1
        # float64, because mutual information is a small difference of two entropies.
        self._total = self._total + probabilities.double()
        self._at_temperatures = self._at_temperatures + scale_probabilities(probabilities, temperature)
        self._entropy = self._entropy + entropy
        self._votes = self._votes + one_hot(probabilities.argmax(dim=1), probabilities.shape[1])

    @property
    def mean(self) -> Tensor:
        """The pooled prediction, [N, C]."""
        return scale_probabilities(self._plain_mean, self._temperature)

    @property
    def mean_at_temperatures(self) -> Tensor:
        """The pooled prediction of members each at its own temperature, [N, C]."""
        return self._at_temperatures / self.members

    @property
    def mutual_information(self) -> Tensor:
        """The entropy of the pooled prediction beyond the members' own, [N]: what they disagree about."""
        # Never below 0 but for rounding.
        return (predictive_entropy(self._plain_mean) - self._entropy / self.members).clamp(min=0)

    @property
    def disagreement(self) -> float:
        """The share of examples on which two members differ in the predicted class, over all pairs."""
        if self.members < 2:
            return 0.0
        # Of K^2 ordered pairs, those of one class agree; K of them are a member with itself.
        agreeing = self._votes.double().square().sum(dim=1)
        pairs = self.members * (self.members - 1)
        return ((self.members**2 - agreeing) / pairs).mean().item()

    @property
    def _plain_mean(self) -> Tensor:
        if not self.members:
            raise ValueError("a pool needs at least one member, got none; call add() first")
        return self._total / self.members
