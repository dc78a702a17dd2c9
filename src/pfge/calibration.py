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

    Example:
        >>> from pfge.calibration import Temperature
        >>> Temperature(1.5)
        Temperature(value=1.5, converged=True)
    """

    value: float
    converged: bool = True


@dataclass(frozen=True)
class Temperatures:
    """What an ensemble divides logits by.

    With logits z_k and temperature T_k of each of K members, and the pooled temperature T, it predicts

        softmax(log(p) / T),    p = (1 / K) * sum over k of softmax(z_k / T_k)

    Attributes:
        pooled: T, of the members' mean.
        members: T_k, of each member's logits before they are pooled; 1 for all if None.

    References:
        Rahaman, Thiery, "Uncertainty Quantification and Deep Ensembles", NeurIPS 2021, for why the mean
        needs a temperature of its own.

    Example:
        >>> from pfge.calibration import Temperatures
        >>> temperatures = Temperatures(pooled=0.8, members=(1.0, 2.0, 3.0))
        >>> temperatures.of_member(1)
        2.0
        >>> temperatures.of_last(2)
        Temperatures(pooled=1.0, members=(2.0, 3.0))
    """

    pooled: float = 1.0
    members: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for temperature in (self.pooled, *(self.members or ())):
            _require_temperature(temperature)

    def of_member(self, number: int) -> float:
        """Return a member's own temperature."""
        return self.members[number] if self.members is not None else 1.0

    def of_last(self, count: int) -> "Temperatures":
        """Return the temperatures of the last members; the pooled one was fitted for all and becomes 1."""
        return Temperatures(members=self.members and self.members[-count:])


def _require_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise ValueError(f"a temperature must be positive and finite, got {temperature}")


UNSCALED = Temperatures()


def fit_temperature(logits: Tensor, targets: Tensor) -> Temperature:
    """Return the T that minimizes the negative log-likelihood of softmax(logits / T).

        T = argmin of the mean over examples of -log softmax(z / T)[target]

    Above 1 it makes predictions less confident, below 1 more; the most probable class stays the same.

    A fit that does not converge, as when every prediction is right and a lower T is always better, gives
    a warning and the temperature 1, which leaves predictions as they are.

    Args:
        logits: [N, C]; the logarithm of probabilities will do, see `log_probabilities`.
        targets: The true class of each example, none of which the model was trained or tested on.

    References:
        Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Example:
        A model that gives logits (2, 0), a confidence of 0.88, and is right three times of four. The best
        temperature makes the confidence 3/4: T = 2 / log(3).

        >>> import torch
        >>> from pfge.calibration import fit_temperature
        >>> logits = torch.tensor([[2.0, 0.0]]).expand(4, 2)
        >>> fitted = fit_temperature(logits, torch.tensor([0, 0, 0, 1]))
        >>> round(fitted.value, 4)
        1.8205
        >>> (logits[0] / fitted.value).softmax(dim=0)
        tensor([0.7500, 0.2500])
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
        return Temperature(1 / _minimize(gaps))
    except ArithmeticError as cause:
        warnings.warn(f"the temperature stays 1, as its fit did not converge: {cause}", stacklevel=2)
        return Temperature(1.0, converged=False)


def fit_member_temperatures(members: Iterable[Tensor], targets: Tensor) -> list[float]:
    """Return the temperature of each member by itself.

    Args:
        members: Each member's probabilities [N, C]: a tensor [K, N, C], or one member at a time.
        targets: The true class of each example.

    Example:
        >>> import torch
        >>> from pfge.calibration import fit_member_temperatures
        >>> probabilities = torch.tensor([[2.0, 0.0], [4.0, 0.0]]).softmax(dim=1)
        >>> members = probabilities[:, None].expand(2, 4, 2)  # two members, four examples, two classes
        >>> [round(t, 4) for t in fit_member_temperatures(members, torch.tensor([0, 0, 0, 1]))]
        [1.8205, 3.641]
    """
    return [fit_temperature(log_probabilities(member), targets).value for member in members]


def log_probabilities(probabilities: Tensor) -> Tensor:
    """Return log p, to serve as logits; a p below the smallest normal float32 counts as that.

    Args:
        probabilities: [N, C], each row summing to one.

    Example:
        >>> import torch
        >>> from pfge.calibration import log_probabilities
        >>> log_probabilities(torch.tensor([[1.0, 0.0]]))
        tensor([[  0.0000, -87.3365]])
    """
    require_probabilities(probabilities)
    return _log(probabilities)


def scale_logits(logits: Tensor, temperature: float) -> Tensor:
    """Return logits / T.

    Args:
        logits: Of any shape.
        temperature: Above 0.

    Example:
        >>> import torch
        >>> from pfge.calibration import scale_logits
        >>> scale_logits(torch.tensor([[2.0, 0.0]]), temperature=4.0)
        tensor([[0.5000, 0.0000]])
    """
    _require_temperature(temperature)
    return logits / temperature


def scale_probabilities(probabilities: Tensor, temperature: float) -> Tensor:
    """Return softmax(log p / T) of each row; the probabilities themselves if T is 1.

    Each probability is raised to the power 1 / T, and rows are divided by their sums.

    Args:
        probabilities: [N, C], each row summing to one.
        temperature: Above 0.

    Example:
        >>> import torch
        >>> from pfge.calibration import scale_probabilities
        >>> scale_probabilities(torch.tensor([[0.75, 0.25]]), temperature=0.5)  # 9 to 1
        tensor([[0.9000, 0.1000]])
    """
    _require_temperature(temperature)
    if temperature == 1:
        return probabilities
    return (_log(probabilities) / temperature).softmax(dim=-1).to(probabilities.dtype)


def _log(probabilities: Tensor) -> Tensor:
    wide = probabilities.to(torch.promote_types(probabilities.dtype, torch.float32))
    return wide.clamp(min=SMALLEST).log()


def _minimize(gaps: Tensor) -> float:
    """Return the b = 1/T that minimizes the mean of log sum exp(b * gaps), which is convex in b.

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
