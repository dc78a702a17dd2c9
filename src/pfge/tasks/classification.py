"""One class for each example."""

from typing import ClassVar

from torch import Tensor

from pfge.metrics.scores import Scores, score_examples
from pfge.tasks.metric import Metric


class Classification:
    """Logits [N, C] and one true class for each example."""

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy", "accuracy", "higher", Scores.accuracy, "%", 2, "correct", is_main=True),
        Metric("nll", "NLL", "lower", Scores.negative_log_likelihood, score="log_loss", is_main=True),
        Metric("brier", "Brier score", "lower", Scores.brier_score, score="brier"),
        Metric("ece", "ECE", "lower", Scores.expected_calibration_error, "%", 2, is_main=True),
        Metric(
            "ece_equal_mass",
            "ECE, equal mass",
            "lower",
            lambda scores: scores.expected_calibration_error(equal_mass=True),
            "%",
            2,
        ),
        Metric("mce", "MCE", "lower", Scores.maximum_calibration_error, "%", 2),
        Metric("aurc", "AURC", "lower", Scores.area_under_risk_coverage),
        Metric("entropy", "entropy", "lower", Scores.mean_entropy, score="entropy"),
    )

    def score(self, predictions: Tensor, targets: Tensor) -> Scores:
        """Return the scores of each example."""
        return score_examples(predictions, targets)
