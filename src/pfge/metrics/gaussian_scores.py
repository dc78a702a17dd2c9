"""Scores of numbers that are predicted by a mean and a variance."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pfge.errors import InvalidValueError
from pfge.metrics.scores import ExampleScores

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
