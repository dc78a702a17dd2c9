"""Examples in bins of confidence: the data of a reliability diagram and the calibration errors."""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor


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
        raise ValueError(f"bins must be at least 1, got {bins}")
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
