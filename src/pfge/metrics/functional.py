"""How good probabilities are: every metric maps (probabilities [N, C], targets [N]) to a float.

Each is a method of `Scores`, which also serves batches and processes (`StreamingScores`).
"""

from torch import Tensor

from pfge.metrics.reliability import Reliability
from pfge.metrics.scores import score_examples


def accuracy(probabilities: Tensor, targets: Tensor) -> float:
    """Return the share of examples whose most probable class is the target."""
    return score_examples(probabilities, targets).accuracy()


def negative_log_likelihood(probabilities: Tensor, targets: Tensor) -> float:
    """Return the mean of -log p(target); a p below the smallest float32 counts as that."""
    return score_examples(probabilities, targets).negative_log_likelihood()


def brier_score(probabilities: Tensor, targets: Tensor) -> float:
    """Return the mean over examples of the squared distance to the one-hot target, from 0 to 2."""
    return score_examples(probabilities, targets).brier_score()


def expected_calibration_error(
    probabilities: Tensor, targets: Tensor, bins: int = 15, equal_mass: bool = False
) -> float:
    """Return the mean gap between confidence and accuracy over bins; see `reliability`."""
    return score_examples(probabilities, targets).expected_calibration_error(bins, equal_mass)


def maximum_calibration_error(probabilities: Tensor, targets: Tensor, bins: int = 15) -> float:
    """Return the largest gap between confidence and accuracy of any bin of equal width."""
    return score_examples(probabilities, targets).maximum_calibration_error(bins)


def area_under_risk_coverage(probabilities: Tensor, targets: Tensor) -> float:
    """Return the mean, over k from 1 to N, of the error among the k most confident examples (AURC).

    Where equal confidences leave open which examples those are, it is the expected error.
    """
    return score_examples(probabilities, targets).area_under_risk_coverage()


def reliability(
    probabilities: Tensor, targets: Tensor, bins: int = 15, equal_mass: bool = False
) -> Reliability:
    """Return confidence and accuracy in bins, for a reliability diagram.

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example.
        bins: How many bins divide the confidences from 0 to 1; each includes its upper bound.
        equal_mass: Whether bins hold equally many examples instead of being equally wide. Examples of
            equal confidence then count with their mean accuracy, so their order does not matter.
    """
    return score_examples(probabilities, targets).reliability(bins, equal_mass)
