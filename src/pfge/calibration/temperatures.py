"""What predictions are calibrated by, and what an ensemble has of it."""

import math
import sys
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Calibration = float | tuple[float, ...]
"""What predictions are calibrated by: one number, or one for each label. 1 leaves them as they are."""

CalibrateBy = Literal["pooled", "members", "shared", "weights"]
"""What is fitted: a temperature of the mean; one of each member; one that members share and one of the mean;
one of the mean and members' weights."""


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
    """What an ensemble divides logits by, and how much each member counts.

    With logits z_k, temperature T_k and weight w_k of each member, and the pooled temperature T, it predicts

        softmax(log(p) / T),    p = sum over k of w_k * softmax(z_k / T_k)

    Other tasks have the same places: a temperature for each label, a factor on the variance.

    Attributes:
        pooled: T, of the pooled prediction; a tuple has one for each label.
        members: T_k, of each member before they are pooled; 1 for all if None.
        weights: w_k, above 0 and with the sum 1; the same for all if None.

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
        """Raise a ValueError unless each of so many members has a temperature and a weight, or none has."""
        for what, given in (("temperature", self.members), ("weight", self.weights)):
            if given is not None and len(given) != count:
                raise ValueError(f"each of {count} members has a {what}, got {len(given)} of them")

    def of_last(self, count: int) -> "Temperatures":
        """Return the temperatures of the last members alone.

        The pooled temperature and the weights were fitted for all members: there are none. Temperatures of
        members are kept only if there is no pooled one, as they would else have been fitted together with it.
        """
        if self.members is None or self.pooled != 1:
            return UNSCALED
        return Temperatures(members=self.members[-count:])


def require_temperatures(temperatures: Calibration) -> None:
    """Raise a ValueError unless each number of a calibration is positive and finite."""
    each = temperatures if isinstance(temperatures, tuple) else (temperatures,)
    if not each:
        raise ValueError("temperatures of labels need at least one label, got none")
    for temperature in each:
        require_temperature(temperature)


def require_weights(weights: tuple[float, ...]) -> None:
    """Raise a ValueError unless weights are above 0 and sum to one."""
    if not all(0 < weight <= 1 for weight in weights) or not math.isclose(sum(weights), 1, abs_tol=1e-6):
        raise ValueError(
            f"weights of members must be above 0 and sum to one, got {', '.join(map(str, weights))}; leave "
            "out members that do not count"
        )


def require_temperature(temperature: Calibration | Tensor) -> float | Tensor:
    """Return a temperature, or raise a ValueError unless it is one positive and finite number.

    A tensor is not looked at: it is a number in the graph of an export, which was checked before.
    """
    if isinstance(temperature, Tensor):
        return temperature
    if isinstance(temperature, tuple):
        raise ValueError(f"one temperature is needed, got {len(temperature)}; only labels have one each")
    if not 0 < temperature <= sys.float_info.max:  # JSON has whole numbers beyond that
        raise ValueError(f"a temperature must be positive and finite, got {temperature}")
    return temperature


UNSCALED = Temperatures()
