"""Metrics that scores of one class and of several labels share."""

from torch import Tensor


class ProbabilityMetrics:
    """Means over examples of what scores of predicted probabilities have for each."""

    log_loss: Tensor
    brier: Tensor

    def negative_log_likelihood(self) -> float:
        """Return the mean log loss."""
        return self.log_loss.mean().item()

    def brier_score(self) -> float:
        """Return the mean Brier score."""
        return self.brier.mean().item()
