"""Temperatures fitted on held-out predictions (Guo et al. 2017)."""

import math
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor

from pfge.calibration.scaling import log_probabilities, logit
from pfge.calibration.temperatures import Temperature
from pfge.metrics.checks import require_targets
from pfge.metrics.label_scores import require_labels

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


def fit_label_temperatures(probabilities: Tensor, targets: Tensor) -> tuple[float, ...]:
    """Return, for each label, the T that minimizes the negative log-likelihood of sigmoid(logit(p) / T).

    Where a fit does not converge, as for a label that no example has, there is a warning, and T is 1.

    Args:
        probabilities: Of each label, [N, L].
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
    signed = logit(probabilities.detach().to("cpu", torch.float64)) * (1 - 2 * targets.cpu().double())
    if not bool(signed.isfinite().all()):
        raise ValueError(f"probabilities {list(probabilities.shape)} must be from 0 to 1, got NaN or others")
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
