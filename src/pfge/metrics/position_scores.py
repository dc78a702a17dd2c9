"""Scores of a class for each position of an example: the pixels of a mask, the tokens of a text.

They are sums over the positions of each example, not values for each position, and stay small where
predictions are large.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pfge.errors import InvalidValueError
from pfge.metrics.scores import ExampleScores, Reliability, require_probabilities, smallest_of, widen

BINS = 15
_SCORED_AT_ONCE = 1 << 19
"""Probabilities that are looked at together, which bounds the memory of scoring."""


@dataclass(frozen=True, eq=False)
class PositionScores(ExampleScores):
    """How good the predictions for the positions of each example are, summed over its positions.

    Positions whose target is ignored do not count. An example of which every position is ignored has
    zeros, and does not change any metric.

    Attributes:
        positions: How many positions count, [N].
        correct: How many of them are predicted right, [N].
        log_loss: The sum of -log p(target), [N]; a p of 0 counts as the least number above 0 of its type.
        brier: The sum of squared distances to the one-hot target, [N].
        entropy: The sum of the entropies of the predictions, in nats, [N].
        hits: How many positions of each class are predicted right, [N, C].
        predicted: How many positions are predicted to be of each class, [N, C].
        actual: How many positions are of each class, [N, C].
        bins: For each of 15 bins of confidence the positions in it, the sum of their confidences, and how
            many are right, [N, 15, 3].

    Example:
        One image of two pixels and another one of which one pixel is ignored:

        >>> import torch
        >>> from pfge.metrics import score_positions
        >>> probabilities = torch.tensor([[[0.9, 0.6], [0.1, 0.4]], [[0.2, 0.5], [0.8, 0.5]]])  # [N, C, W]
        >>> scores = score_positions(probabilities, torch.tensor([[0, 1], [1, 255]]), ignore_index=255)
        >>> scores.positions, scores.correct
        (tensor([2., 1.], dtype=torch.float64), tensor([1., 1.], dtype=torch.float64))
        >>> round(scores.accuracy(), 4), scores.mean_iou()  # 1 of 2 pixels for both classes
        (0.6667, 0.5)
    """

    positions: Tensor
    correct: Tensor
    log_loss: Tensor
    brier: Tensor
    entropy: Tensor
    hits: Tensor
    predicted: Tensor
    actual: Tensor
    bins: Tensor

    def accuracy(self) -> float:
        """Return the share of positions that are predicted right: the pixel accuracy of masks."""
        return self._mean(self.correct)

    def negative_log_likelihood(self) -> float:
        """Return the mean log loss over positions."""
        return self._mean(self.log_loss)

    def perplexity(self) -> float:
        """Return exp(NLL): of how many tokens a model that is as unsure as this one would have to choose."""
        return math.exp(self.negative_log_likelihood())

    def brier_score(self) -> float:
        """Return the mean Brier score over positions."""
        return self._mean(self.brier)

    def mean_entropy(self) -> float:
        """Return the mean entropy of the predictions over positions."""
        return self._mean(self.entropy)

    def mean_iou(self) -> float:
        """Return the mean over classes of intersection over union (Jaccard index).

        Both are counted over all examples. A class that is neither predicted nor a target of any position
        is left out.
        """
        self._count()
        hits, predicted, actual = (
            counts.sum(dim=0, dtype=torch.float64) for counts in (self.hits, self.predicted, self.actual)
        )
        union = predicted + actual - hits
        return (hits / union)[union > 0].mean().item()

    def reliability(self) -> Reliability:
        """Return confidence and accuracy of positions in 15 bins of equal width."""
        self._count()
        count, confidence, correct = self.bins.sum(dim=0).cpu().unbind(dim=1)
        edges = (torch.arange(BINS + 1, dtype=torch.float64) / BINS).tolist()
        filled = count.clamp(min=1)
        return Reliability(
            lower=tuple(edges[:-1]),
            upper=tuple(edges[1:]),
            count=tuple(count.long().tolist()),
            confidence=tuple((confidence / filled).tolist()),
            accuracy=tuple((correct / filled).tolist()),
        )

    def expected_calibration_error(self) -> float:
        """Return the mean gap between confidence and accuracy over bins."""
        return self.reliability().expected_calibration_error

    def maximum_calibration_error(self) -> float:
        """Return the largest gap between confidence and accuracy of any bin."""
        return self.reliability().maximum_calibration_error

    def _mean(self, sums: Tensor) -> float:
        return sums.sum().item() / self._count()

    def _count(self) -> float:
        count = self.positions.sum().item()
        if not count:
            raise InvalidValueError(
                f"metrics need at least one position with a target, but every position of all {len(self)} "
                "examples is ignored; check ignore_index and the targets"
            )
        return count


def score_positions(
    probabilities: Tensor, targets: Tensor, dim: int = 1, ignore_index: int | None = None
) -> PositionScores:
    """Return the scores of each example, summed over its positions.

    Args:
        probabilities: Examples first, classes along `dim`: [N, C, H, W], or [N, T, C] with -1.
        targets: The true class of each position: [N, H, W], or [N, T].
        dim: The dimension of the classes.
        ignore_index: The target of positions that do not count.

    Example:
        >>> import torch
        >>> from pfge.metrics import score_positions
        >>> tokens = torch.tensor([[[0.75, 0.25], [0.375, 0.625]]])  # one text of two tokens
        >>> scores = score_positions(tokens, torch.tensor([[0, 0]]), dim=-1)
        >>> scores.accuracy(), scores.brier_score()
        (0.5, 0.453125)
    """
    by_position = require_positions(probabilities, targets, dim)
    flat = by_position.detach().flatten(1, -2) if by_position.ndim > 2 else by_position.detach()[:, None]
    targets = targets.to(flat.device)
    valid = mark_valid(targets, flat.shape[-1], ignore_index).reshape(len(flat), -1)
    targets = targets.reshape(len(flat), -1)
    step = max(1, _SCORED_AT_ONCE // flat[0].numel())
    parts = [slice(start, start + step) for start in range(0, len(flat), step)]
    return PositionScores.cat([_score(flat[part], targets[part], valid[part]) for part in parts])


def require_positions(probabilities: Tensor, targets: Tensor, dim: int) -> Tensor:
    """Return predictions with the classes last; raise a ValueError unless targets fit the rest."""
    by_position = probabilities.movedim(dim, -1)
    if targets.shape != by_position.shape[:-1]:
        raise InvalidValueError(
            f"targets must have the shape of the predictions without the classes along dimension {dim}, "
            f"{list(by_position.shape[:-1])} for {list(probabilities.shape)}, got {list(targets.shape)}"
        )
    if not targets.numel():
        raise InvalidValueError(
            f"predictions need at least one example and position, got {list(targets.shape)}"
        )
    return by_position


def mark_valid(targets: Tensor, classes: int, ignore_index: int | None) -> Tensor:
    """Return where targets count; raise a ValueError if one is neither a class nor the ignored one."""
    if not targets.is_floating_point():
        targets = targets.long()  # a byte compared with a number beyond it is compared with another number
    valid = torch.ones_like(targets, dtype=torch.bool) if ignore_index is None else targets != ignore_index
    outside = valid & ((targets < 0) | (targets >= classes))
    if targets.is_floating_point() or bool(outside.any()):
        or_ignored = "" if ignore_index is None else f", or {ignore_index}, which is ignored"
        found = f"{targets[outside][0].item()}" if bool(outside.any()) else f"{targets.dtype}"
        raise InvalidValueError(
            f"targets {list(targets.shape)} must be whole numbers from 0 to {classes - 1}{or_ignored}, got "
            f"{found}; ignore_index= names a target that does not count"
        )
    return valid


def _score(probabilities: Tensor, targets: Tensor, valid: Tensor) -> PositionScores:
    """Return the scores of probabilities [N, P, C] and targets [N, P], of which only valid ones count."""
    examples, _, classes = probabilities.shape
    wide = probabilities.double()
    if not bool(valid.all()):
        # What is predicted there, which may be NaN, as of the padding of a text, must not reach any sum.
        wide = wide.where(valid[..., None], 1 / classes)
        targets = targets.where(valid, 0)
    require_probabilities(wide.flatten(0, 1), probabilities.dtype)
    wide = widen(wide, probabilities.dtype)
    targets = targets.long()
    confidence, predicted = wide.max(dim=2)
    of_target = wide.gather(2, targets[..., None])[..., 0]
    right = valid & (predicted == targets)
    row = torch.arange(examples, device=wide.device)[:, None].expand_as(targets)

    def total(values: Tensor) -> Tensor:
        return (values * valid).sum(dim=1, dtype=torch.float64)

    def count(where: Tensor, number: Tensor, groups: int, weights: Tensor | None = None) -> Tensor:
        index = (row * groups + number)[where]
        of = None if weights is None else weights[where]
        return torch.bincount(index, of, minlength=examples * groups).view(examples, groups)

    # Upper bounds belong to their bin, as in `reliability`.
    edges = torch.arange(1, BINS, dtype=torch.float64, device=wide.device) / BINS
    place = torch.bucketize(confidence, edges)
    bins = [count(valid, place, BINS), count(valid, place, BINS, confidence), count(right, place, BINS)]
    return PositionScores(
        positions=total(valid),
        correct=total(right),
        log_loss=total(-of_target.clamp(min=smallest_of(probabilities.dtype)).log()),
        brier=total(wide.square().sum(dim=2) - 2 * of_target + 1),
        entropy=total(torch.special.entr(wide).sum(dim=2)),
        hits=count(right, targets, classes).int(),
        predicted=count(valid, predicted, classes).int(),
        actual=count(valid, targets, classes).int(),
        bins=torch.stack([values.double() for values in bins], dim=2),
    )
