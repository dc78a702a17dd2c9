"""Variances of predicted numbers, fitted on held-out predictions."""

import math
import warnings

import torch
from torch import Tensor

from pfge.metrics.gaussian_scores import require_gaussians

LEAST_NOISE = 1e-6  # of the mean squared error
SMALL_ERROR = 1e-11
"""Mean squared error below which the digits of float64 beside 1 are too few for a tenth of it."""


def fit_variance_factor(predictions: Tensor, targets: Tensor) -> float:
    """Return the factor on predicted variances that makes the targets most likely.

        factor = mean of (y - m)^2 / v

    It is 1, with a warning, if every mean is exactly its target, so that smaller is always better.

    Args:
        predictions: Means m and variances v in the last dimension, [N, 2] or [N, D, 2].
        targets: The true numbers y, [N] or [N, D].

    Example:
        >>> import torch
        >>> from pfge.calibration import fit_variance_factor
        >>> predictions = torch.tensor([[0.0, 1.0], [0.0, 4.0]])
        >>> fit_variance_factor(predictions, torch.tensor([3.0, 2.0]))  # (9 / 1 + 4 / 4) / 2
        5.0
    """
    mean, variance, y = require_gaussians(predictions, targets)
    return _positive_or_1(((y - mean).square() / variance).mean().item(), "the factor on the variance")


def fit_noise_variance(predictions: Tensor, targets: Tensor) -> float:
    """Return the variance of the noise that makes the targets most likely, where 1 was predicted.

        noise = argmin of the mean over examples of -log N(y; m, v - 1 + noise)

    The rest of the variance, v - 1, is how much members differ, and stays. Without it, the result is the
    mean squared error. It is at least a millionth of that, and 1, with a warning, if that is 0. There is
    also a warning if that is so small that v - 1 has lost most of its digits beside 1.

    Args:
        predictions: Means m and variances v in the last dimension, [N, 2] or [N, D, 2].
        targets: The true numbers y, [N] or [N, D].

    Example:
        >>> import torch
        >>> from pfge.calibration import fit_noise_variance
        >>> predictions = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
        >>> round(fit_noise_variance(predictions, torch.tensor([3.0, 1.0])), 4)  # (9 + 1) / 2
        5.0
        >>> predictions[:, 1] += 2  # which members explain
        >>> round(fit_noise_variance(predictions, torch.tensor([3.0, 1.0])), 4)
        3.0
    """
    mean, variance, y = require_gaussians(predictions, targets)
    squares, spread = (y - mean).square().cpu(), (variance - 1).clamp(min=0).cpu()
    error = squares.mean().item()
    if not error:
        return _positive_or_1(error, "the variance of the noise")
    if error < SMALL_ERROR:
        warnings.warn(
            f"the mean squared error is {error:.1g}, so that how much members differ is lost in the variance "
            "of 1 that they are predicted with; scale the targets to a standard deviation of about 1",
            stacklevel=2,
        )

    def nll(position: float) -> float:
        total = spread + math.exp(position)
        return (total.log() + squares / total).mean().item()

    # No more than the largest squared error is ever better; there may be several minima in between.
    low, high = math.log(error * LEAST_NOISE), math.log(squares.max().item())
    grid = torch.linspace(low, high, 100, dtype=torch.float64).tolist()
    best = min(range(len(grid)), key=lambda number: nll(grid[number]))
    low, high = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
    while high - low > 1e-7:  # a third less in each pass
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if nll(left) <= nll(right) else (left, high)
    return math.exp((low + high) / 2)


def _positive_or_1(value: float, what: str) -> float:
    if value > 0:
        return value
    warnings.warn(
        f"{what} stays 1, as its fit did not converge: every mean is its target, so that smaller is always "
        "better",
        stacklevel=3,
    )
    return 1.0
