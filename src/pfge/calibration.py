"""Temperature scaling on held-out predictions (Guo et al. 2017)."""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pfge.metrics.checks import SMALLEST, require_probabilities, require_targets

__all__ = [
    "Temperature",
    "Temperatures",
    "fit_member_temperatures",
    "fit_temperature",
    "log_probabilities",
    "scale_logits",
    "scale_probabilities",
]

LOWEST, HIGHEST = 1e-3, 1e3


@dataclass(frozen=True)
class Temperature:
    """A fitted temperature.

    Attributes:
        value: What logits are divided by; 1 if the fit did not converge.
        converged: Whether the fit converged.
    """

    value: float
    converged: bool = True


@dataclass(frozen=True)
class Temperatures:
    """What an ensemble divides logits by.

    Attributes:
        pooled: Of the members' mean p, which becomes softmax(log p / pooled).
        members: Of each member's logits, before they are pooled; 1 for all if None.
    """

    pooled: float = 1.0
    members: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for temperature in (self.pooled, *(self.members or ())):
            _require_temperature(temperature)

    def of_member(self, number: int) -> float:
        """Return a member's own."""
        return self.members[number] if self.members is not None else 1.0

    def of_last(self, count: int) -> "Temperatures":
        """Return those of the last members; that of all pooled is not theirs."""
        return Temperatures(members=self.members and self.members[-count:])


def _require_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise ValueError(f"a temperature must be positive and finite, got {temperature}")


UNSCALED = Temperatures()


def fit_temperature(logits: Tensor, targets: Tensor) -> Temperature:
    """Return the T that minimises the negative log-likelihood of softmax(logits / T).

    A fit that does not converge, as when every prediction is right and a lower T is always better, gives
    a warning and the temperature 1, which leaves predictions as they are.

    Args:
        logits: [N, C]; the logarithm of probabilities will do, see `log_probabilities`.
        targets: The true class of each example, none of which the model was trained or tested on.
    """
    require_targets(logits, targets)
    if not bool(logits.isfinite().all()):
        raise ValueError(
            "logits must be finite, got NaN or infinite ones; take those of probabilities from "
            "log_probabilities()"
        )
    wide = logits.detach().to("cpu", torch.float64)
    # Relative to the target's, so that the signs of the sums below are exact where all are of one sign.
    gaps = wide - wide.gather(1, targets.to("cpu", torch.int64)[:, None])
    try:
        return Temperature(1 / _minimise(gaps))
    except ArithmeticError as cause:
        warnings.warn(f"the temperature stays 1, as its fit did not converge: {cause}", stacklevel=2)
        return Temperature(1.0, converged=False)


def fit_member_temperatures(members: Iterable[Tensor], targets: Tensor) -> list[float]:
    """Return the temperature of each member by itself.

    Args:
        members: Each member's probabilities [N, C]: a tensor [K, N, C], or one member at a time.
        targets: The true class of each example.
    """
    return [fit_temperature(log_probabilities(member), targets).value for member in members]


def log_probabilities(probabilities: Tensor) -> Tensor:
    """Return log p, with a p below the smallest float32 counted as that, to serve as logits."""
    require_probabilities(probabilities)
    return _log(probabilities)


def scale_logits(logits: Tensor, temperature: float) -> Tensor:
    """Return logits / T."""
    _require_temperature(temperature)
    return logits / temperature


def scale_probabilities(probabilities: Tensor, temperature: float) -> Tensor:
    """Return softmax(log p / T) of each row; the probabilities themselves if T is 1."""
    _require_temperature(temperature)
    if temperature == 1:
        return probabilities
    return (_log(probabilities) / temperature).softmax(dim=-1).to(probabilities.dtype)


def _log(probabilities: Tensor) -> Tensor:
    wide = probabilities.to(torch.promote_types(probabilities.dtype, torch.float32))
    return wide.clamp(min=SMALLEST).log()


def _minimise(gaps: Tensor) -> float:
    """Return the b = 1/T that minimises the mean of log sum exp(b * gaps), which is convex in b.

    Newton's method on log b for the root of the derivative, between two ends that close in on it.

    Raises:
        ArithmeticError: There is no such b between the bounds.
    """
    if _slope(gaps, 1 / LOWEST)[0] <= 0:
        raise ArithmeticError(
            "no class is more probable than the target, so that sharper is never worse"
            if bool((gaps <= 0).all())
            else f"the best temperature is below {LOWEST:g}"
        )
    if _slope(gaps, 1 / HIGHEST)[0] >= 0:
        # At b = 0 the slope is the mean of the gaps, and it never falls.
        raise ArithmeticError(
            "predictions are no better than chance, so that flatter is never worse"
            if gaps.mean() >= 0
            else f"the best temperature is above {HIGHEST:g}"
        )
    low, high, position = math.log(1 / HIGHEST), math.log(1 / LOWEST), 0.0
    for _ in range(100):
        slope, curvature = _slope(gaps, math.exp(position))
        if slope < 0:
            low = position
        else:
            high = position
        step = -slope / (math.exp(position) * curvature) if curvature else math.inf
        if not low < position + step < high:
            step = (low + high) / 2 - position
        position += step
        if abs(step) < 1e-10:
            return math.exp(position)
    raise ArithmeticError("100 steps did not find the minimum")


def _slope(gaps: Tensor, b: float) -> tuple[float, float]:
    """Return the first and the second derivative at b of the mean of log sum exp(b * gaps)."""
    shares = (b * gaps).softmax(dim=1)
    means = (shares * gaps).sum(dim=1)
    variances = (shares * (gaps - means[:, None]).square()).sum(dim=1)
    slope, curvature = means.mean().item(), variances.mean().item()
    if not math.isfinite(slope + curvature):
        raise ArithmeticError("logits are too large for their slope to be finite")
    return slope, curvature
