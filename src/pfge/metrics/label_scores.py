"""Scores of several labels for each example, each of which applies or does not."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pfge.errors import InvalidValueError
from pfge.metrics.scores import (
    ExampleScores,
    ProbabilityMetrics,
    Reliability,
    bin_by_confidence,
    smallest_of,
    smallest_rest_of,
)


@dataclass(frozen=True, eq=False)
class LabelScores(ProbabilityMetrics, ExampleScores):
    """How good the prediction of each example's labels is.

    Attributes:
        probability: Of each label, [N, L], float64.
        target: 1 where the label applies and 0 elsewhere, [N, L], uint8.
        log_loss: The mean over labels of -log of the probability of the target, [N], float64. A p of 0 counts
            as the least number above 0 of its type, and a p of 1 as the closest to 1 that is rounded to it.
        brier: The mean over labels of the squared distance to the target, from 0 to 1, [N], float64.

    Example:
        >>> import torch
        >>> from pfge.metrics import score_labels
        >>> scores = score_labels(torch.tensor([[0.75, 0.25], [0.25, 0.5]]), torch.tensor([[1, 0], [1, 1]]))
        >>> scores.brier_score(), scores.average_precision()
        (0.234375, 1.0)
        >>> round(scores.macro_f1(), 4)  # of the labels: 2/3 and 0
        0.3333
    """

    probability: Tensor
    target: Tensor
    log_loss: Tensor
    brier: Tensor

    def macro_f1(self) -> float:
        """Return the mean over labels of F1 = 2 TP / (2 TP + FP + FN), for labels of a probability above 1/2.

        A label that is neither predicted nor a target counts as 0, as in scikit-learn.
        """
        predicted, target = self.probability > 0.5, self.target.bool()
        hits = (predicted & target).sum(dim=0).double()
        total = (predicted.sum(dim=0) + target.sum(dim=0)).double()
        return (2 * hits / total.clamp(min=1)).mean().item()

    def average_precision(self) -> float:
        """Return the mean over labels of the average precision.

        For the examples sorted by the probability of a label, it is the sum over thresholds of the precision
        times the increase of the recall. A label that is no example's target counts as 0, as in scikit-learn.
        """
        labels = zip(self.probability.unbind(dim=1), self.target.unbind(dim=1), strict=True)
        return sum(_average_precision(*label) for label in labels) / self.probability.shape[1]

    def reliability(self, bins: int = 15) -> Reliability:
        """Return, in bins of equal width, the probabilities of labels and how often the labels apply."""
        return bin_by_confidence(self.probability.flatten(), self.target.double().flatten(), bins, False)

    def expected_calibration_error(self, bins: int = 15) -> float:
        """Return the mean gap between the probability of a label and how often it applies, over bins."""
        return self.reliability(bins).expected_calibration_error


def score_labels(probabilities: Tensor, targets: Tensor) -> LabelScores:
    """Return the scores of each example.

    Args:
        probabilities: Of each label, [N, L].
        targets: 1 where the label applies and 0 elsewhere, [N, L].

    Example:
        >>> import torch
        >>> from pfge.metrics import score_labels
        >>> scores = score_labels(torch.tensor([[0.75, 0.5]]), torch.tensor([[1, 0]]))
        >>> round(scores.negative_log_likelihood(), 4)  # -(log(0.75) + log(0.5)) / 2
        0.4904
    """
    require_labels(probabilities, targets)
    p = probabilities.detach().double()
    bad = ~((p >= 0) & (p <= 1))  # NaN too
    if bool(bad.any()):
        raise InvalidValueError(
            f"probabilities {list(p.shape)} of labels must be from 0 to 1, got {p[bad][0].item():.6g}; apply "
            "sigmoid to logits first"
        )
    y = targets.to(p.device, torch.uint8)
    yes = p.clamp(min=smallest_of(probabilities.dtype))
    no = (1 - p).clamp(min=smallest_rest_of(probabilities.dtype))
    return LabelScores(
        probability=p,
        target=y,
        log_loss=-torch.where(y.bool(), yes, no).log().mean(dim=1),
        brier=(p - y).square().mean(dim=1),
    )


def require_labels(predictions: Tensor, targets: Tensor) -> None:
    """Raise a ValueError unless predictions [N, L] have targets 0 or 1 of the same shape."""
    if predictions.ndim != 2 or targets.shape != predictions.shape or not predictions.numel():
        raise InvalidValueError(
            f"predictions and targets of labels are [N, L], got {list(predictions.shape)} and "
            f"{list(targets.shape)}"
        )
    outside = (targets != 0) & (targets != 1)
    if bool(outside.any()):
        raise InvalidValueError(
            f"targets {list(targets.shape)} of labels must be 0 or 1, got {targets[outside][0].item()}"
        )


def _average_precision(probability: Tensor, target: Tensor) -> float:
    order = probability.argsort(descending=True)
    ranked, hits = probability[order], target[order].double().cumsum(0)
    if not hits[-1]:
        return 0.0
    # Examples of equal probability are above a threshold together: the last of them counts for all.
    last = torch.cat([ranked[1:] != ranked[:-1], torch.ones_like(ranked[:1], dtype=torch.bool)])
    found, above = hits[last], last.nonzero()[:, 0] + 1
    gained = found.diff(prepend=found.new_zeros(1))
    return (gained * found / above).sum().item() / hits[-1].item()
