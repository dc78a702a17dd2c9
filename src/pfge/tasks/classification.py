"""One class for each example."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

from pfge.calibration import fit_temperature, log_probabilities, scale_probabilities
from pfge.metrics.scores import Scores, score_examples
from pfge.metrics.uncertainty import MemberSpread, kl_divergence
from pfge.tasks.base import Task
from pfge.tasks.mean_pool import MeanPool
from pfge.tasks.metric import Metric


@dataclass(frozen=True)
class Classification(Task):
    """Logits [N, C] and one true class for each example, [N].

    The loss is the cross-entropy. A member's prediction is p_k = softmax(logits), the pooled one the mean of
    these, and the calibration a temperature T: p becomes softmax(log p / T).

    Example:
        >>> import torch
        >>> from pfge.tasks import Classification
        >>> task = Classification()
        >>> predictions = task.predictions(torch.tensor([[0.0, 0.0], [0.0, 2.0]]))
        >>> predictions
        tensor([[0.5000, 0.5000],
                [0.1192, 0.8808]])
        >>> round(task.summarize(task.score(predictions, torch.tensor([0, 1])))["nll"], 4)
        0.41
    """

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "accuracy",
            "accuracy",
            "higher",
            Scores.accuracy,
            "%",
            2,
            "correct",
            is_main=True,
            uses_confidence=False,
        ),
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

    def loss(self, outputs: Tensor, targets: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Return the cross-entropy, in the outputs' own type."""
        return cross_entropy(outputs, targets, reduction=reduction)

    def predictions(self, outputs: Any) -> Tensor:
        """Return softmax(outputs), [N, C], in float32."""
        if not isinstance(outputs, Tensor) or outputs.ndim != 2:
            found = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ValueError(f"the model must return logits [N, C], got {found}; pass forward= to pick them")
        return outputs.float().softmax(dim=1)

    def pool(self) -> MeanPool:
        """Return an empty pool: the mean of members' probabilities."""
        return MeanPool()

    def spread(self) -> MemberSpread:
        """Return an accumulator of mutual information and disagreement."""
        return MemberSpread()

    def score(self, predictions: Tensor, targets: Tensor) -> Scores:
        """Return the scores of each example."""
        return score_examples(predictions, targets)

    def divergence(self, expected: Tensor, predictions: Tensor) -> float:
        """Return the mean over examples of KL(expected || predictions), in nats."""
        return kl_divergence(expected, predictions)

    def fit_calibration(self, predictions: Tensor, targets: Tensor) -> float:
        """Return the temperature that minimizes the negative log-likelihood; see `fit_temperature`."""
        return fit_temperature(log_probabilities(predictions), targets).value

    def calibrate(self, predictions: Tensor, calibration: float) -> Tensor:
        """Return softmax(log p / T); the predictions themselves if T is 1."""
        return scale_probabilities(predictions, calibration)


def require_classification(task: Task, what: str) -> None:
    """Raise a ValueError unless a task is one of classes, which `what` needs."""
    if not isinstance(task, Classification):
        raise ValueError(f"{what} needs a task with one class for each example, Classification(), got {task}")
