"""Scores of one class for each example."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pfge.metrics.checks import SMALLEST, require_probabilities, require_targets
from pfge.metrics.example_scores import ExampleScores
from pfge.metrics.probability_metrics import ProbabilityMetrics
from pfge.metrics.reliability import Reliability, bin_by_confidence, sort_by_confidence


@dataclass(frozen=True, eq=False)
class Scores(ProbabilityMetrics, ExampleScores):
    """How good the prediction of each example's class is; all are float64 [N].

    Attributes:
        confidence: The probability of the most probable class.
        correct: 1 where that class is the target and 0 elsewhere.
        log_loss: -log p(target); a p below the smallest float32 counts as that.
        brier: The squared distance to the one-hot target, from 0 to 2.
        entropy: The entropy of the prediction, in nats.

    Example:
        >>> import torch
        >>> from pfge.metrics import score_examples
        >>> scores = score_examples(torch.tensor([[0.75, 0.25], [0.375, 0.625]]), torch.tensor([0, 0]))
        >>> scores.accuracy(), scores.expected_calibration_error()
        (0.5, 0.4375)
        >>> scores.take(torch.tensor([0])).accuracy()
        1.0
    """

    confidence: Tensor
    correct: Tensor
    log_loss: Tensor
    brier: Tensor
    entropy: Tensor

    def accuracy(self) -> float:
        """Return the share of right predictions."""
        return self.correct.mean().item()

    def mean_entropy(self) -> float:
        """Return the mean entropy of the predictions."""
        return self.entropy.mean().item()

    def reliability(self, bins: int = 15, equal_mass: bool = False) -> Reliability:
        """Return confidence and accuracy in bins; see `pfge.metrics.reliability`."""
        return bin_by_confidence(self.confidence, self.correct, bins, equal_mass)

    def expected_calibration_error(self, bins: int = 15, equal_mass: bool = False) -> float:
        """Return the mean gap between confidence and accuracy over bins."""
        return self.reliability(bins, equal_mass).expected_calibration_error

    def maximum_calibration_error(self, bins: int = 15) -> float:
        """Return the largest gap between confidence and accuracy of any bin of equal width."""
        return self.reliability(bins).maximum_calibration_error

    def area_under_risk_coverage(self) -> float:
        """Return the mean, over k from 1 to N, of the error among the k most confident examples.

        Where equal confidences leave open which examples those are, it is the expected error.
        """
        _, accuracy = sort_by_confidence(self.confidence, self.correct)
        errors = (1 - accuracy.flip(0)).cumsum(0)
        return (errors / torch.arange(1, len(self) + 1, device=errors.device)).mean().item()


def score_examples(probabilities: Tensor, targets: Tensor) -> Scores:
    """Return the scores of each example.

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example, [N].

    Example:
        >>> import torch
        >>> from pfge.metrics import score_examples
        >>> scores = score_examples(torch.tensor([[0.75, 0.25], [0.375, 0.625]]), torch.tensor([0, 0]))
        >>> scores.confidence.tolist(), scores.correct.tolist(), scores.brier.tolist()
        ([0.75, 0.625], [1.0, 0.0], [0.125, 0.78125])
    """
    require_targets(probabilities, targets)
    require_probabilities(probabilities)
    wide = probabilities.detach().double()
    targets = targets.to(wide.device, torch.int64)
    confidence, predicted = wide.max(dim=1)
    of_target = wide.gather(1, targets[:, None])[:, 0]
    return Scores(
        confidence=confidence,
        correct=(predicted == targets).double(),
        log_loss=-of_target.clamp(min=SMALLEST).log(),
        brier=wide.square().sum(dim=1) - 2 * of_target + 1,
        entropy=torch.special.entr(wide).sum(dim=1),
    )
