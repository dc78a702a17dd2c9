"""Scores of each example, and metrics: of one class, of labels, of numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Self

import torch
from torch import Tensor

from pfge.errors import InvalidValueError

SMALLEST = torch.finfo(torch.float32).tiny
"""The least probability that a logarithm is taken of: float32 softmax rounds smaller ones to 0."""


def smallest_of(dtype: torch.dtype) -> float:
    """Return the value that replaces a probability of 0 in a logarithm: the least number above 0 of its type.

    That is 6e-8 in float16, which rounds smaller numbers to 0, and never less than `SMALLEST`.
    """
    info = torch.finfo(dtype)
    return max(SMALLEST, info.smallest_normal * info.eps)


def smallest_rest_of(dtype: torch.dtype) -> float:
    """Return the value that replaces 1 - p for a p of 1: any p closer to 1 is rounded to it."""
    return torch.finfo(dtype).eps / 4


def widen(probabilities: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return probabilities in float64, divided by their sum if their type is narrower than float32.

    In bfloat16 a sum over classes may be off by 0.4 %, which exceeds the uncertainty of many predictions.

    Args:
        probabilities: Probabilities with the classes in the last dimension.
        dtype: The type that the probabilities were rounded to; their own if None.
    """
    wide = probabilities.double()
    if torch.finfo(dtype or probabilities.dtype).eps <= torch.finfo(torch.float32).eps:
        return wide
    return wide / wide.sum(dim=-1, keepdim=True)


def require_targets(predictions: Tensor, targets: Tensor) -> None:
    """Raise a ValueError unless each row of [N, C] has a target among its classes."""
    require_rows(predictions)
    if targets.shape != predictions.shape[:1]:
        raise InvalidValueError(
            f"targets must be [{len(predictions)}], a class for each row of predictions "
            f"{list(predictions.shape)}, got {list(targets.shape)}; for multi-label targets pass "
            "task=MultiLabel()"
        )
    classes = predictions.shape[1]
    if targets.is_floating_point() or int(targets.min()) < 0 or int(targets.max()) >= classes:
        raise InvalidValueError(
            f"targets must be whole numbers from 0 to {classes - 1}, got {targets.dtype} from "
            f"{targets.min().item()} to {targets.max().item()}"
        )


def require_rows(predictions: Tensor) -> None:
    """Raise a ValueError unless there are rows of at least two classes."""
    if predictions.ndim != 2:
        raise InvalidValueError(f"predictions are [N, C], got {list(predictions.shape)}")
    examples, classes = predictions.shape
    if not examples:
        raise InvalidValueError("predictions need at least one example, got none")
    if classes < 2:
        raise InvalidValueError(f"predictions need at least two classes, got {classes}")


def require_probabilities(probabilities: Tensor, dtype: torch.dtype | None = None) -> None:
    """Raise a ValueError unless each row of [N, C] is a distribution over classes.

    Args:
        probabilities: The rows.
        dtype: The type that the rows were rounded to; their own if None.
    """
    require_rows(probabilities)
    info = torch.finfo(dtype or probabilities.dtype)
    # Rounding changes a sum by up to eps times it, and by half of the least number for each class.
    tolerance = max(1e-3, 2 * info.eps) + probabilities.shape[1] * info.smallest_normal * info.eps / 2
    sums = probabilities.sum(dim=1, dtype=torch.float64)
    lowest = probabilities.amin(dim=1)
    # NaN compares false, so the test asks for what must hold.
    good = ((sums - 1).abs() < tolerance) & (lowest >= 0)
    if not bool(good.all()):
        row = int(good.logical_not().nonzero()[0])
        raise InvalidValueError(
            f"each row of probabilities must sum to 1 without negative or NaN entries, got entries from "
            f"{lowest[row].item():.6g} in a row ({row}) that sums to {sums[row].item():.6g}; "
            "apply softmax to logits first"
        )


@dataclass(frozen=True, eq=False)
class ExampleScores:
    """Tensors by name, with examples along the first dimension of each.

    The scores of a task are a subclass whose fields are these tensors. Scores of parts of a data set can be
    put together, drawn from, and saved by name.

    Example:
        >>> from dataclasses import dataclass
        >>> import torch
        >>> from pfge.metrics import ExampleScores
        >>> @dataclass(frozen=True, eq=False)
        ... class Errors(ExampleScores):
        ...     error: torch.Tensor
        >>> both = Errors.cat([Errors(torch.tensor([1.0, 2.0])), Errors(torch.tensor([3.0]))])
        >>> both.tensors
        {'error': tensor([1., 2., 3.])}
        >>> len(both), both.take(torch.tensor([2, 2])).error
        (3, tensor([3., 3.]))
        >>> Errors.from_tensors(both.tensors).error
        tensor([1., 2., 3.])
    """

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by the names of the fields, in their order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Return scores made of tensors by name; other names are ignored."""
        names = [field.name for field in fields(cls)]
        if missing := [name for name in names if name not in tensors]:
            raise InvalidValueError(
                f"{cls.__name__} needs {', '.join(names)}, but {', '.join(missing)} is missing"
            )
        return cls(**{name: tensors[name] for name in names})

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Return the scores of all examples of several parts, in order."""
        if not parts:
            raise InvalidValueError("scores can be put together from at least one part, got none")
        names = parts[0].tensors
        return cls(**{name: torch.cat([part.tensors[name] for part in parts]) for name in names})

    def take(self, index: Tensor) -> Self:
        """Return the scores of the examples with these indices, which may repeat."""
        return type(self)(**{name: tensor[index] for name, tensor in self.tensors.items()})


class ProbabilityMetrics:
    """Metrics that are means over examples, for scores of predicted probabilities."""

    log_loss: Tensor
    brier: Tensor

    def negative_log_likelihood(self) -> float:
        """Return the mean log loss."""
        return self.log_loss.mean().item()

    def brier_score(self) -> float:
        """Return the mean Brier score."""
        return self.brier.mean().item()


@dataclass(frozen=True)
class Reliability:
    """How confident and how right the predictions in each bin are.

    Attributes:
        lower: The lower bound of each bin; the lowest confidence in it for bins of equal mass.
        upper: The upper bound, which belongs to the bin; the highest confidence for equal mass.
        count: The examples in each bin.
        confidence: The mean confidence in each bin, 0 if it is empty.
        accuracy: The share of right predictions in each bin, 0 if it is empty.

    Example:
        >>> from pfge.metrics import Reliability
        >>> found = Reliability(
        ...     lower=(0.0, 0.5), upper=(0.5, 1.0), count=(1, 3), confidence=(0.5, 0.75), accuracy=(0.0, 1.0)
        ... )
        >>> found.gaps
        (0.5, 0.25)
        >>> found.expected_calibration_error  # (1 * 0.5 + 3 * 0.25) / 4
        0.3125
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    count: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]

    @property
    def gaps(self) -> tuple[float, ...]:
        """The distance between confidence and accuracy in each bin."""
        return tuple(abs(a - c) for a, c in zip(self.accuracy, self.confidence, strict=True))

    @property
    def expected_calibration_error(self) -> float:
        """The mean gap over all examples."""
        return sum(gap * count for gap, count in zip(self.gaps, self.count, strict=True)) / sum(self.count)

    @property
    def maximum_calibration_error(self) -> float:
        """The largest gap of any bin."""
        return max(self.gaps)

    def to_dict(self) -> dict[str, list[float]]:
        """Return plain numbers by name, for JSON."""
        return {name: list(values) for name, values in asdict(self).items()}


def bin_by_confidence(confidence: Tensor, correct: Tensor, bins: int, equal_mass: bool) -> Reliability:
    """Divide examples into bins by confidence.

    Args:
        confidence: The probability of each example's predicted class, [N].
        correct: 1 where the prediction is right and 0 elsewhere, [N].
        bins: How many bins.
        equal_mass: Whether bins hold equally many examples, the first ones one more where they do not
            divide, rather than being equally wide from 0 to 1. Examples of equal confidence then count
            with their mean accuracy, so that it does not matter which of them falls into which bin.
    """
    if bins < 1:
        raise InvalidValueError(f"bins must be at least 1, got {bins}")
    confidence, correct = sort_by_confidence(confidence.cpu(), correct.cpu())
    if equal_mass:
        number = torch.arange(bins)
        count = len(confidence) // bins + (number < len(confidence) % bins).long()
        index = number.repeat_interleave(count)
        last = count.cumsum(0) - 1
        # An empty bin, after the last example, is a point at the highest confidence.
        lower, upper = confidence[(last - count + 1).clamp(max=len(confidence) - 1)], confidence[last]
    else:
        edges = torch.arange(bins + 1, dtype=torch.float64) / bins
        lower, upper = edges[:-1], edges[1:]
        # Upper bounds belong to their bin, as in Guo et al. (2017).
        index = torch.bucketize(confidence, edges[1:-1])
        count = index.bincount(minlength=bins)
    filled = count.clamp(min=1)
    return Reliability(
        lower=tuple(lower.tolist()),
        upper=tuple(upper.tolist()),
        count=tuple(count.tolist()),
        confidence=tuple((_sum_by(index, confidence, bins) / filled).tolist()),
        accuracy=tuple((_sum_by(index, correct, bins) / filled).tolist()),
    )


def sort_by_confidence(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Return the confidences from low to high and, for each, the accuracy at that very confidence.

    Examples of equal confidence share their mean, so the result does not depend on their order.
    """
    values, index, count = torch.unique(confidence, return_inverse=True, return_counts=True)
    accuracy = _sum_by(index, correct, len(values)) / count
    return values.repeat_interleave(count), accuracy.repeat_interleave(count)


def _sum_by(index: Tensor, values: Tensor, groups: int) -> Tensor:
    return values.new_zeros(groups).index_add_(0, index, values)


@dataclass(frozen=True, eq=False)
class Scores(ProbabilityMetrics, ExampleScores):
    """How good the prediction of each example's class is; all are float64 [N].

    Attributes:
        confidence: The probability of the most probable class.
        correct: 1 where that class is the target and 0 elsewhere.
        log_loss: -log p(target); a p of 0 counts as the least number above 0 of its type.
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
        """Return confidence and accuracy in bins; see `pfge.metrics.scores`."""
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
        probabilities: [N, C], each row summing to one up to the rounding of its type. In a type narrower than
            float32, each row is divided by its sum.
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
    wide = widen(probabilities.detach())
    targets = targets.to(wide.device, torch.int64)
    confidence, predicted = wide.max(dim=1)
    of_target = wide.gather(1, targets[:, None])[:, 0]
    return Scores(
        confidence=confidence,
        correct=(predicted == targets).double(),
        log_loss=-of_target.clamp(min=smallest_of(probabilities.dtype)).log(),
        brier=wide.square().sum(dim=1) - 2 * of_target + 1,
        entropy=torch.special.entr(wide).sum(dim=1),
    )


def accuracy(probabilities: Tensor, targets: Tensor) -> float:
    """Return the share of examples whose most probable class is the target.

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example, [N].

    Example:
        >>> import torch
        >>> from pfge.metrics import accuracy
        >>> probabilities = torch.tensor([[0.8, 0.2], [0.4, 0.6]])
        >>> accuracy(probabilities, torch.tensor([0, 0]))
        0.5
    """
    return score_examples(probabilities, targets).accuracy()


def negative_log_likelihood(probabilities: Tensor, targets: Tensor) -> float:
    """Return the negative log-likelihood of the targets in nats, the mean over examples.

        NLL = (1 / N) * sum over n of -log p_n[target_n]

    A p of 0 counts as the least number above 0 of its type: 6e-8 (17 nats) in float16, and at least the
    smallest normal float32 (87 nats). A rounded zero does not make the NLL infinite.

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example, [N].

    References:
        Good, "Rational Decisions", Journal of the Royal Statistical Society B, 1952.

    Example:
        >>> import torch
        >>> from pfge.metrics import negative_log_likelihood
        >>> probabilities = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
        >>> round(negative_log_likelihood(probabilities, torch.tensor([0, 0])), 4)  # 1.5 * log(2)
        1.0397
    """
    return score_examples(probabilities, targets).negative_log_likelihood()


def brier_score(probabilities: Tensor, targets: Tensor) -> float:
    """Return the mean over examples of the squared distance to the one-hot target, from 0 to 2.

        Brier = (1 / N) * sum over n and classes c of (p_n[c] - [c = target_n])^2

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example, [N].

    References:
        Brier, "Verification of Forecasts Expressed in Terms of Probability", Monthly Weather Review, 1950.

    Example:
        >>> import torch
        >>> from pfge.metrics import brier_score
        >>> probabilities = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
        >>> brier_score(probabilities, torch.tensor([0, 0]))  # (0.5 + 1.125) / 2
        0.8125
    """
    return score_examples(probabilities, targets).brier_score()


def expected_calibration_error(
    probabilities: Tensor, targets: Tensor, bins: int = 15, equal_mass: bool = False
) -> float:
    """Return the mean gap between confidence and accuracy over bins (ECE); see `reliability`.

        ECE = sum over bins b of (n_b / N) * |accuracy_b - confidence_b|

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example, [N].
        bins: How many bins divide the confidences.
        equal_mass: Whether bins hold equally many examples instead of being equally wide.

    References:
        Naeini, Cooper, Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning",
        AAAI 2015. Nixon et al., "Measuring Calibration in Deep Learning", CVPR Workshops 2019, for bins of
        equal mass.

    Example:
        One example of confidence 0.75 is right, and one of confidence 0.625 is wrong: (0.25 + 0.625) / 2.

        >>> import torch
        >>> from pfge.metrics import expected_calibration_error
        >>> probabilities = torch.tensor([[0.75, 0.25], [0.375, 0.625]])
        >>> expected_calibration_error(probabilities, torch.tensor([0, 0]))
        0.4375
    """
    return score_examples(probabilities, targets).expected_calibration_error(bins, equal_mass)


def maximum_calibration_error(probabilities: Tensor, targets: Tensor, bins: int = 15) -> float:
    """Return the largest gap between confidence and accuracy of any bin of equal width (MCE).

        MCE = max over bins b that are not empty of |accuracy_b - confidence_b|

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example, [N].
        bins: How many bins divide the confidences from 0 to 1.

    References:
        Naeini, Cooper, Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning",
        AAAI 2015.

    Example:
        >>> import torch
        >>> from pfge.metrics import maximum_calibration_error
        >>> probabilities = torch.tensor([[0.75, 0.25], [0.375, 0.625]])
        >>> maximum_calibration_error(probabilities, torch.tensor([0, 0]))
        0.625
    """
    return score_examples(probabilities, targets).maximum_calibration_error(bins)


def area_under_risk_coverage(probabilities: Tensor, targets: Tensor) -> float:
    """Return the mean, over k from 1 to N, of the error among the k most confident examples (AURC).

        AURC = (1 / N) * sum over k from 1 to N of (errors among the k most confident) / k

    It is low where confidence tells right predictions from wrong ones. Where equal confidences leave open
    which examples are the k most confident, it is the expected error.

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example, [N].

    References:
        Geifman, Uziel, El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers",
        ICLR 2019.

    Example:
        The most confident example is right, the other one wrong: (0 / 1 + 1 / 2) / 2.

        >>> import torch
        >>> from pfge.metrics import area_under_risk_coverage
        >>> probabilities = torch.tensor([[0.75, 0.25], [0.375, 0.625]])
        >>> area_under_risk_coverage(probabilities, torch.tensor([0, 0]))
        0.25
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

    References:
        DeGroot, Fienberg, "The Comparison and Evaluation of Forecasters", The Statistician, 1983.
        Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Example:
        >>> import torch
        >>> from pfge.metrics import reliability
        >>> probabilities = torch.tensor([[0.75, 0.25], [0.375, 0.625]])
        >>> found = reliability(probabilities, torch.tensor([0, 0]), bins=2)
        >>> found.count, found.confidence, found.accuracy
        ((0, 2), (0.0, 0.6875), (0.0, 0.5))
    """
    return score_examples(probabilities, targets).reliability(bins, equal_mass)


@dataclass(frozen=True, eq=False)
class SquaredErrors(ExampleScores):
    """How far outputs are from targets of the same shape.

    Attributes:
        squared_error: The mean over the entries of an example, float64 [N].

    Example:
        >>> import torch
        >>> from pfge.metrics import SquaredErrors
        >>> SquaredErrors(torch.tensor([1.0, 3.0])).mean_squared_error()
        2.0
    """

    squared_error: Tensor

    def mean_squared_error(self) -> float:
        """Return the mean over examples."""
        return self.squared_error.mean().item()


def score_squared_errors(outputs: Tensor, targets: Tensor) -> SquaredErrors:
    """Return the mean squared error of each example.

    Args:
        outputs: Numbers of any shape, examples first.
        targets: The numbers that they should be, of the same shape.

    Example:
        >>> import torch
        >>> from pfge.metrics import score_squared_errors
        >>> score_squared_errors(torch.zeros(2, 2), torch.tensor([[0.0, 2.0], [1.0, 1.0]])).squared_error
        tensor([2., 1.], dtype=torch.float64)
    """
    if outputs.shape != targets.shape or not outputs.numel():
        raise InvalidValueError(
            f"targets must have the shape of the outputs, {list(outputs.shape)}, and at least one entry, got "
            f"{list(targets.shape)}"
        )
    differences = outputs.detach().double() - targets.to(outputs.device, torch.float64)
    return SquaredErrors(differences.square().reshape(len(outputs), -1).mean(dim=1))


@dataclass(frozen=True, eq=False)
class LabelScores(ProbabilityMetrics, ExampleScores):
    """How good the prediction of each example's labels is.

    Attributes:
        probability: The probability of each label, [N, L], float64.
        target: 1 where the label applies and 0 elsewhere, [N, L], uint8.
        log_loss: The mean over labels of -log of the probability of the target, [N], float64. The logarithm
            stays finite for a p that its type has rounded to 0 or 1.
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
        times the increase of the recall. A label that never applies counts as 0, as in scikit-learn.
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
        probabilities: The probability of each label, [N, L].
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
            f"predictions and targets of labels must both be [N, L], got {list(predictions.shape)} and "
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


WITHIN_90 = 1.6448536269514722
"""A normal variable is within so many standard deviations of its mean with a probability of 0.9."""


@dataclass(frozen=True, eq=False)
class GaussianScores(ExampleScores):
    """How good a normal distribution predicts each example's numbers; all are float64 [N].

    Each is the mean over the D numbers of an example.

    Attributes:
        squared_error: The squared distance of the mean from the target.
        log_loss: -log of the density at the target.
        crps: The continuous ranked probability score, in the unit of the target.
        covered: 1 where the target is in the central interval of 90 % and 0 elsewhere.

    References:
        Gneiting, Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", Journal of the
        American Statistical Association, 2007, for the closed form of the CRPS.

    Example:
        A prediction of mean 0 and variance 4 for the targets 0 and 4:

        >>> import torch
        >>> from pfge.metrics import score_gaussians
        >>> scores = score_gaussians(torch.tensor([[0.0, 4.0], [0.0, 4.0]]), torch.tensor([0.0, 4.0]))
        >>> scores.root_mean_squared_error() ** 2, scores.coverage()
        (8.000000000000002, 0.5)
    """

    squared_error: Tensor
    log_loss: Tensor
    crps: Tensor
    covered: Tensor

    def root_mean_squared_error(self) -> float:
        """Return the root of the mean squared error (RMSE)."""
        return math.sqrt(self.squared_error.mean().item())

    def negative_log_likelihood(self) -> float:
        """Return the mean log loss."""
        return self.log_loss.mean().item()

    def mean_crps(self) -> float:
        """Return the mean CRPS."""
        return self.crps.mean().item()

    def coverage(self) -> float:
        """Return the share of targets that are in their intervals of 90 %."""
        return self.covered.mean().item()


def score_gaussians(predictions: Tensor, targets: Tensor) -> GaussianScores:
    """Return the scores of each example.

        NLL = (log(2 pi v) + (y - m)^2 / v) / 2
        CRPS = s * (z * (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)),    s = sqrt(v),    z = (y - m) / s

    Args:
        predictions: Means m and variances v in the last dimension, [N, 2] or [N, D, 2].
        targets: The true numbers y, [N] or [N, D].

    Example:
        >>> import torch
        >>> from pfge.metrics import score_gaussians
        >>> scores = score_gaussians(torch.tensor([[1.0, 1.0]]), torch.tensor([1.0]))
        >>> round(scores.negative_log_likelihood(), 4)  # log(2 pi) / 2
        0.9189
        >>> round(scores.mean_crps(), 4)  # (sqrt(2) - 1) / sqrt(pi)
        0.2337
    """
    mean, variance, y = require_gaussians(predictions, targets)
    deviation = variance.sqrt()
    z = (y - mean) / deviation
    density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    each = {
        "squared_error": (y - mean).square(),
        "log_loss": (variance.log() + math.log(2 * math.pi) + z.square()) / 2,
        "crps": deviation * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi)),
        "covered": (z.abs() <= WITHIN_90).double(),
    }
    return GaussianScores(**{name: values.flatten(1).mean(dim=1) for name, values in each.items()})


def require_gaussians(predictions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, variances and targets, [N, D] each in float64; raise a ValueError if they do not fit."""
    if predictions.ndim not in (2, 3) or predictions.shape[-1] != 2 or not predictions.numel():
        raise InvalidValueError(
            f"predictions are means and variances [N, 2] or [N, D, 2], got {list(predictions.shape)}"
        )
    wide = predictions.detach().double().view(len(predictions), -1, 2)
    shapes = [wide.shape[:2]] if wide.shape[1] > 1 else [wide.shape[:1], wide.shape[:2]]
    if targets.shape not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise InvalidValueError(
            f"targets must be {expected} for predictions {list(predictions.shape)}, got {list(targets.shape)}"
        )
    mean, variance = wide.unbind(dim=2)
    for name, values, good in (
        ("a predicted variance must be positive and finite", variance, variance > 0),
        ("a predicted mean must be finite", mean, mean == mean),
        ("a target must be finite", targets, targets == targets),
    ):
        bad = ~(good & (values.abs() < torch.inf))
        if bool(bad.any()):
            example = int(bad.nonzero()[0, 0])
            raise InvalidValueError(
                f"{name}, got {values[bad][0].item():.6g} for example {example} of {list(values.shape)}"
            )
    return mean, variance, targets.to(wide.device, torch.float64).view(wide.shape[:2])
