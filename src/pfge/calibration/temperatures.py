"""Temperatures and variances: how predictions are scaled, and how the factors are fitted."""

import math
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pfge.errors import InvalidValueError
from pfge.metrics.scores import (
    require_gaussians,
    require_labels,
    require_probabilities,
    require_targets,
    smallest_of,
    smallest_rest_of,
)
from pfge.rounding import first_lowest

Calibration = float | tuple[float, ...]
"""A calibration: one number, or one for each label. 1 leaves predictions as they are."""

CalibrateBy = Literal["pooled", "members", "shared", "weights"]
"""The parameters to fit: a temperature of the mean; one for each member; one for all members and one for the
mean; one for the mean and the members' weights."""


@dataclass(frozen=True)
class Temperature:
    """A fitted temperature.

    Attributes:
        value: The divisor of the logits; 1 if the fit did not converge.
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
    """Temperatures of an ensemble and of its members, and the members' weights.

    With logits z_k, temperature T_k and weight w_k of each member, and the pooled temperature T, it predicts

        softmax(log(p) / T),    p = sum over k of w_k * softmax(z_k / T_k)

    For other tasks, the same attributes hold a temperature for each label, or a factor on the variance.

    Attributes:
        pooled: The temperature T of the pooled prediction; a tuple has one for each label.
        members: The temperatures T_k of the members before they are pooled; 1 for all if None.
        weights: The weights w_k, above 0 and with the sum 1; the same for all if None.

    References:
        Rahaman, Thiery, "Uncertainty Quantification and Deep Ensembles", NeurIPS 2021, for why the mean
        needs a temperature of its own.

    Example:
        >>> from pfge.calibration import Temperatures
        >>> temperatures = Temperatures(pooled=0.8, members=(1.0, 2.0, 3.0))
        >>> temperatures.of_member(1)
        2.0
        >>> temperatures.of_last(2)
        Temperatures(pooled=1.0, members=None, weights=None)
        >>> Temperatures(members=(1.0, 2.0, 3.0)).of_last(2)
        Temperatures(pooled=1.0, members=(2.0, 3.0), weights=None)
    """

    pooled: Calibration = 1.0
    members: tuple[Calibration, ...] | None = None
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for temperature in (self.pooled, *(self.members or ())):
            require_temperatures(temperature)
        if self.weights is not None:
            require_weights(self.weights)

    def of_member(self, number: int) -> Calibration:
        """Return a member's own temperature."""
        return self.members[number] if self.members is not None else 1.0

    def weight_of(self, number: int) -> float:
        """Return how much a member counts in a pool, relative to the others."""
        return self.weights[number] if self.weights is not None else 1.0

    def require_members(self, count: int) -> None:
        """Raise a ValueError unless temperatures and weights, if given, have `count` entries."""
        for what, given in (("temperature", self.members), ("weight", self.weights)):
            if given is not None and len(given) != count:
                raise InvalidValueError(
                    f"{what}s must have {count} entries, one per member, got {len(given)}"
                )

    def of_last(self, count: int) -> "Temperatures":
        """Return the temperatures of the last members alone.

        Drops the pooled temperature and the weights, which were fitted for all members; calibrate again.
        Members keep their temperatures unless these were fitted together with a pooled one.
        """
        if self.members is None or self.pooled != 1:
            return UNSCALED
        return Temperatures(members=self.members[-count:])


def require_temperatures(temperatures: Calibration) -> None:
    """Raise a ValueError unless each number of a calibration is positive and finite."""
    each = temperatures if isinstance(temperatures, tuple) else (temperatures,)
    if not each:
        raise InvalidValueError("temperatures of labels need at least one label, got none")
    for temperature in each:
        require_temperature(temperature)


def require_weights(weights: tuple[float, ...]) -> None:
    """Raise a ValueError unless weights are above 0 and sum to one."""
    if not all(0 < weight <= 1 for weight in weights) or not math.isclose(sum(weights), 1, abs_tol=1e-6):
        raise InvalidValueError(
            f"weights of members must be above 0 and sum to one, got {', '.join(map(str, weights))}; drop "
            "members that should not count"
        )


def require_temperature(temperature: Calibration | Tensor) -> float | Tensor:
    """Return a temperature, or raise a ValueError unless it is one positive and finite number.

    A tensor is returned unchecked: it is a value in the graph of an export, which was checked before.
    """
    if isinstance(temperature, Tensor):
        return temperature
    if isinstance(temperature, tuple):
        raise InvalidValueError(
            f"one temperature is needed, got {len(temperature)}; only labels have one each"
        )
    if not 0 < temperature <= sys.float_info.max:  # JSON has whole numbers beyond that
        raise InvalidValueError(f"a temperature must be positive and finite, got {temperature}")
    return temperature


UNSCALED = Temperatures()


def log_probabilities(probabilities: Tensor) -> Tensor:
    """Return log p, to serve as logits; a p of 0 counts as the least number above 0 of its type.

    It is at least the smallest normal float32.

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
        logits: Logits of any shape.
        temperature: Above 0.

    Example:
        >>> import torch
        >>> from pfge.calibration import scale_logits
        >>> scale_logits(torch.tensor([[2.0, 0.0]]), temperature=4.0)
        tensor([[0.5000, 0.0000]])
    """
    require_temperature(temperature)
    return logits / temperature


def scale_probabilities(probabilities: Tensor, temperature: Calibration | Tensor, dim: int = -1) -> Tensor:
    """Return softmax(log p / T) along the classes; the probabilities themselves if T is 1.

    Each probability is raised to the power 1 / T, and all are divided by their sums over the classes.

    Args:
        probabilities: [N, C], or of any shape, summing to one along the classes.
        temperature: Above 0.
        dim: The dimension of the classes.

    Example:
        >>> import torch
        >>> from pfge.calibration import scale_probabilities
        >>> scale_probabilities(torch.tensor([[0.75, 0.25]]), temperature=0.5)  # 9 to 1
        tensor([[0.9000, 0.1000]])
    """
    temperature = require_temperature(temperature)
    if not isinstance(temperature, Tensor) and temperature == 1:
        return probabilities
    return (_log(probabilities) / temperature).softmax(dim=dim).to(probabilities.dtype)


def scale_label_probabilities(probabilities: Tensor, temperatures: Calibration | Tensor) -> Tensor:
    """Return sigmoid(logit(p) / T) for each label; the probabilities themselves if T is 1.

    Args:
        probabilities: The probability of each label, [N, L].
        temperatures: One for each of L labels, or one for all.

    Example:
        >>> import torch
        >>> from pfge.calibration import scale_label_probabilities
        >>> scale_label_probabilities(torch.tensor([[0.75, 0.75]]), (0.5, 1.0))  # 9 to 1, and 3 to 1
        tensor([[0.9000, 0.7500]])
    """
    if not isinstance(temperatures, Tensor):
        require_temperatures(temperatures)
        if temperatures == 1:
            return probabilities
        if isinstance(temperatures, tuple) and len(temperatures) != probabilities.shape[-1]:
            raise InvalidValueError(
                f"each of {probabilities.shape[-1]} labels has a temperature, got {len(temperatures)} "
                f"for predictions {list(probabilities.shape)}"
            )
        temperatures = torch.tensor(temperatures, device=probabilities.device)
    logits = logit(probabilities)
    return (logits / temperatures.to(logits.dtype)).sigmoid().to(probabilities.dtype)


def logit(probabilities: Tensor, least: torch.dtype = torch.float32) -> Tensor:
    """Return log(p / (1 - p)), finite for a p that its type has rounded to 0 or 1 too.

    Args:
        probabilities: Probabilities of any floating-point type.
        least: The narrowest type of the result.
    """
    dtype = probabilities.dtype
    wide = probabilities.to(torch.promote_types(dtype, least))
    rest = (1 - wide).clamp(min=smallest_rest_of(dtype))
    return wide.clamp(min=smallest_of(dtype)).log() - rest.log()


def _log(probabilities: Tensor) -> Tensor:
    wide = probabilities.to(torch.promote_types(probabilities.dtype, torch.float32))
    return wide.clamp(min=smallest_of(probabilities.dtype)).log()


LOWEST, HIGHEST = 1e-3, 1e3


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
        raise InvalidValueError(
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


def fit_label_temperatures(probabilities: Tensor, targets: Tensor) -> tuple[float, ...]:
    """Return, for each label, the T that minimizes the negative log-likelihood of sigmoid(logit(p) / T).

    Where a fit does not converge, as for a label that no example has, there is a warning, and T is 1.

    Args:
        probabilities: The probability of each label, [N, L].
        targets: 1 where the label applies and 0 elsewhere, [N, L].

    Example:
        Logits of 2 for a label that applies three times of four, and of 4 for another such label:

        >>> import torch
        >>> from pfge.calibration import fit_label_temperatures
        >>> probabilities = torch.tensor([[2.0, 4.0]]).double().sigmoid().expand(4, 2)
        >>> targets = torch.tensor([[1, 1], [1, 1], [1, 1], [0, 0]])
        >>> [round(t, 4) for t in fit_label_temperatures(probabilities, targets)]
        [1.8205, 3.641]
    """
    require_labels(probabilities, targets)
    # sigmoid(z) is the softmax of (z, 0), and z is the gap from the target's logit where the target is 0.
    signed = logit(probabilities.detach().cpu(), torch.float64) * (1 - 2 * targets.cpu().double())
    if not bool(signed.isfinite().all()):
        raise InvalidValueError(
            f"probabilities {list(probabilities.shape)} must be from 0 to 1, got NaN or others"
        )
    fitted, reasons = [], {}
    for label, gaps in enumerate(signed.unbind(dim=1)):
        try:
            fitted.append(1 / _minimize(torch.stack([gaps, torch.zeros_like(gaps)], dim=1)))
        except ArithmeticError as cause:
            fitted.append(1.0)
            reasons[label] = cause
    if reasons:
        told = "; ".join(f"{label}: {cause}" for label, cause in list(reasons.items())[:3])
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        warnings.warn(
            f"the temperatures of {len(reasons)} of {len(fitted)} labels stay 1, as their fits did not "
            f"converge ({told}{more})",
            stacklevel=2,
        )
    return tuple(fitted)


def _minimize(gaps: Tensor) -> float:
    """Return the b = 1/T that minimizes the mean of log sum exp(b * gaps), which is convex in b.

    Newton's method on log b for the root of the derivative, between two ends that close in on it.

    Raises:
        ArithmeticError: The bounds contain no minimum.
    """
    if _slope(gaps, 1 / LOWEST)[0] <= 0:
        raise ArithmeticError(
            "no class is more probable than the target, so sharper predictions are never worse"
            if bool((gaps <= 0).all())
            else f"the best temperature is below {LOWEST:g}"
        )
    if _slope(gaps, 1 / HIGHEST)[0] >= 0:
        # At b = 0 the slope is the mean of the gaps, and it never falls.
        raise ArithmeticError(
            "predictions do not beat chance, so flatter predictions are never worse"
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
            f"the mean squared error is {error:.1g}, so differences of members are lost in the variance "
            "of 1 that they are predicted with; scale the targets to a standard deviation of about 1",
            stacklevel=2,
        )

    def nll(position: float) -> float:
        total = spread + math.exp(position)
        return (total.log() + squares / total).mean().item()

    # No more than the largest squared error is ever better; there may be several minima in between.
    low, high = math.log(error * LEAST_NOISE), math.log(squares.max().item())
    grid = torch.linspace(low, high, 100, dtype=torch.float64).tolist()
    best = first_lowest(range(len(grid)), key=lambda number: nll(grid[number]))
    low, high = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
    while high - low > 1e-7:  # a third less in each pass
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if nll(left) <= nll(right) else (left, high)
    return math.exp((low + high) / 2)


def _positive_or_1(value: float, what: str) -> float:
    if value > 0:
        return value
    warnings.warn(
        f"{what} stays 1, as its fit did not converge: every mean is its target, so smaller is always better",
        stacklevel=3,
    )
    return 1.0
