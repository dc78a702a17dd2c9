"""Several labels for each example, each of which applies or does not."""

from dataclasses import dataclass
from operator import methodcaller
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from pfge.calibration import Calibration, fit_label_temperatures, scale_label_probabilities
from pfge.errors import InvalidValueError
from pfge.metrics.scores import LabelScores, score_labels
from pfge.metrics.uncertainty import ClassDiversity, kl_divergence, kl_loss
from pfge.tasks.base import MeanPool, Metric, Task, sum_type


@dataclass(frozen=True)
class MultiLabel(Task):
    """Logits [N, L], and targets 0 or 1 for each of L labels, [N, L].

    The loss is the binary cross-entropy, the mean over labels. A member's prediction is
    p_k = sigmoid(logits), the pooled one the mean of these. The calibration is a temperature T_l for each
    label: p_l becomes sigmoid(logit(p_l) / T_l). Negative log-likelihood and Brier score are means over
    labels, and the calibration error compares the probability of labels with how often they apply.

    Example:
        >>> import torch
        >>> from pfge.tasks import MultiLabel
        >>> task = MultiLabel()
        >>> predictions = task.predictions(torch.tensor([[0.0, 2.0], [1.0, -1.0]]))
        >>> predictions.float()
        tensor([[0.5000, 0.8808],
                [0.7311, 0.2689]])
        >>> found = task.summarize(task.score(predictions, torch.tensor([[0, 1], [1, 0]])))
        >>> found["macro_f1"], found["average_precision"]
        (1.0, 1.0)
    """

    result_type: ClassVar[torch.dtype | None] = torch.float32
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "macro_f1",
            "macro F1",
            "higher",
            methodcaller("macro_f1"),
            "%",
            2,
            is_main=True,
            uses_confidence=False,
        ),
        Metric(
            "average_precision",
            "average precision",
            "higher",
            methodcaller("average_precision"),
            "%",
            2,
            is_main=True,
            uses_confidence=False,
        ),
        Metric(
            "nll", "NLL", "lower", methodcaller("negative_log_likelihood"), score="log_loss", is_main=True
        ),
        Metric("brier", "Brier score", "lower", methodcaller("brier_score"), score="brier"),
        Metric("ece", "ECE", "lower", methodcaller("expected_calibration_error"), "%", 2, is_main=True),
    )

    def loss(self, outputs: Tensor, targets: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Return the binary cross-entropy, in the outputs' own type."""
        if outputs.shape != targets.shape:
            raise InvalidValueError(
                f"outputs and targets of labels must both be [N, L], got {list(outputs.shape)} and "
                f"{list(targets.shape)}"
            )
        mean = binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))
        return mean if reduction == "mean" else mean * len(targets)

    def predictions(self, outputs: Any) -> Tensor:
        """Return sigmoid(outputs), [N, L].

        It is in float64, on devices that have it: float32 rounds 1 - p to 0 for logits above 17. Members are
        pooled, scored and calibrated in float64, and an ensemble predicts float32.
        """
        if not isinstance(outputs, Tensor) or outputs.ndim != 2:
            found = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise InvalidValueError(f"{self} takes logits [N, L], got {found}; pass forward= to pick them")
        return outputs.to(sum_type(outputs.device)).sigmoid()

    def pool(self) -> MeanPool:
        """Return an empty pool: the mean of members' probabilities."""
        return MeanPool()

    def diversity(self) -> ClassDiversity:
        """Return an accumulator of mutual information and disagreement, means over labels."""
        return ClassDiversity(_yes_and_no)

    def score(self, predictions: Tensor, targets: Tensor) -> LabelScores:
        """Return the scores of each example."""
        return score_labels(predictions, targets)

    def divergence(self, expected: Tensor, predictions: Tensor) -> float:
        """Return the mean over examples and labels of KL(expected || predictions), in nats."""
        return kl_divergence(_yes_and_no(expected), _yes_and_no(predictions))

    def divergence_loss(self, expected: Tensor, predictions: Tensor) -> Tensor:
        """Return the divergence with its gradient."""
        return kl_loss(_yes_and_no(expected), _yes_and_no(predictions))

    def fit_calibration(self, predictions: Tensor, targets: Tensor) -> tuple[float, ...]:
        """Return the temperature of each label; see `fit_label_temperatures`."""
        return fit_label_temperatures(predictions, targets)

    def calibrate(self, predictions: Tensor, calibration: Calibration | Tensor) -> Tensor:
        """Return sigmoid(logit(p) / T) for each label; the predictions themselves if T is 1."""
        return scale_label_probabilities(predictions, calibration)


def _yes_and_no(predictions: Tensor) -> Tensor:
    return torch.stack([predictions, 1 - predictions], dim=-1).flatten(0, -2)
