"""What counts as predictions: probabilities or logits [N, C], and the targets [N] beside them."""

import torch
from torch import Tensor

SMALLEST = torch.finfo(torch.float32).tiny
"""The least probability that a logarithm is taken of: float32 softmax rounds smaller ones to 0."""


def require_targets(predictions: Tensor, targets: Tensor) -> None:
    """Raise a ValueError unless each row of [N, C] has a target among its classes."""
    require_rows(predictions)
    if targets.shape != predictions.shape[:1]:
        raise ValueError(
            f"predictions are [N, C] and targets [N], got {list(predictions.shape)} and {list(targets.shape)}"
        )
    classes = predictions.shape[1]
    if targets.is_floating_point() or int(targets.min()) < 0 or int(targets.max()) >= classes:
        raise ValueError(
            f"targets must be whole numbers from 0 to {classes - 1}, got {targets.dtype} from "
            f"{targets.min().item()} to {targets.max().item()}"
        )


def require_rows(predictions: Tensor) -> None:
    """Raise a ValueError unless there are rows of at least two classes."""
    if predictions.ndim != 2:
        raise ValueError(f"predictions are [N, C], got {list(predictions.shape)}")
    examples, classes = predictions.shape
    if not examples:
        raise ValueError("predictions need at least one example, got none")
    if classes < 2:
        raise ValueError(f"predictions need at least two classes, got {classes}")


def require_probabilities(probabilities: Tensor) -> None:
    """Raise a ValueError unless each row of [N, C] is a distribution over classes."""
    require_rows(probabilities)
    sums = probabilities.sum(dim=1, dtype=torch.float64)
    lowest = probabilities.amin(dim=1)
    # NaN compares false, so the test asks for what must hold.
    good = ((sums - 1).abs() < 1e-3) & (lowest >= 0)
    if not bool(good.all()):
        row = int(good.logical_not().nonzero()[0])
        raise ValueError(
            f"each row of probabilities must sum to 1 without negative or NaN entries, got entries from "
            f"{lowest[row].item():.6g} in a row ({row}) that sums to {sums[row].item():.6g}; "
            "apply softmax to logits first"
        )
