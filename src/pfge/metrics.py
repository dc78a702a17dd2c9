"""How good probabilities are: every metric maps (probabilities [N, C], targets [N]) to a float."""

import torch
from torch import Tensor


def accuracy(probabilities: Tensor, targets: Tensor) -> float:
    """Return the share of examples whose most probable class is the target."""
    _require_predictions(probabilities, targets)
    return (probabilities.argmax(dim=1) == targets).double().mean().item()


def negative_log_likelihood(probabilities: Tensor, targets: Tensor) -> float:
    """Return the mean of -log p(target); a p below the smallest float32 counts as that."""
    _require_predictions(probabilities, targets)
    # float32 softmax rounds tiny probabilities to 0; one such example must not make the mean infinite.
    return -_of_target(probabilities, targets).clamp(min=torch.finfo(torch.float32).tiny).log().mean().item()


def brier_score(probabilities: Tensor, targets: Tensor) -> float:
    """Return the mean over examples of the squared distance to the one-hot target, from 0 to 2."""
    _require_predictions(probabilities, targets)
    squares = probabilities.double().square().sum(dim=1)
    return (squares - 2 * _of_target(probabilities, targets) + 1).mean().item()


def expected_calibration_error(probabilities: Tensor, targets: Tensor, bins: int = 15) -> float:
    """Return the mean gap between confidence and accuracy over bins of equal width.

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example.
        bins: How many bins divide the confidences from 0 to 1; each includes its upper bound.
    """
    _require_predictions(probabilities, targets)
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    confidence, predicted = probabilities.double().max(dim=1)
    correct = (predicted == targets).double()
    # Upper bounds belong to their bin, as in Guo et al. (2017).
    index = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gaps.index_add_(0, index, correct - confidence)
    return (gaps.abs().sum() / len(targets)).item()


def _of_target(probabilities: Tensor, targets: Tensor) -> Tensor:
    return probabilities.double().gather(1, targets[:, None])[:, 0]


def _require_predictions(probabilities: Tensor, targets: Tensor) -> None:
    if probabilities.ndim != 2 or targets.shape != probabilities.shape[:1]:
        raise ValueError(
            f"metrics take probabilities [N, C] and targets [N], got {list(probabilities.shape)} and "
            f"{list(targets.shape)}"
        )
    examples, classes = probabilities.shape
    if not examples:
        raise ValueError("metrics need at least one example, got none")
    if classes < 2:
        raise ValueError(f"metrics need at least two classes, got {classes}")
    if targets.is_floating_point() or int(targets.min()) < 0 or int(targets.max()) >= classes:
        raise ValueError(
            f"targets must be whole numbers from 0 to {classes - 1}, got {targets.dtype} from "
            f"{targets.min().item()} to {targets.max().item()}"
        )
    sums = probabilities.double().sum(dim=1)
    off = (sums - 1).abs()
    # NaN compares false, so the test asks for what must hold.
    if not bool((off < 1e-3).all()) or bool((probabilities < 0).any()):
        worst = int(torch.where(off.isnan(), torch.inf, off).argmax())
        raise ValueError(
            f"each row of probabilities must sum to 1 without negative or NaN entries, got a row "
            f"({worst}) that sums to {sums[worst].item():.6g}; apply softmax to logits first"
        )
