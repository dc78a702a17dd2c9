"""Weights of members, fitted together with the temperature of their mean on held-out predictions."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pfge.calibration.held_out import gain_on_held_out, minimize, require_members, temperature_of
from pfge.calibration.scaling import log_probabilities
from pfge.calibration.temperature_fitting import fit_temperature
from pfge.calibration.temperatures import Temperatures
from pfge.metrics.checks import SMALLEST

LEAST_WEIGHT = 1e-6


@dataclass(frozen=True)
class PoolingWeights:
    """Weights of members and the temperature of their weighted mean.

    Attributes:
        weights: Of each member, above 0, with the sum 1; the same for all if they did not help.
        temperature: Of the weighted mean.
        difference: NLL with weights minus NLL with equal weights, on examples that neither was fitted on.
        error: Its standard error over these examples.

    Example:
        >>> from pfge.calibration import PoolingWeights
        >>> PoolingWeights((0.75, 0.25), temperature=1.5, difference=-0.02, error=0.004).help
        True
    """

    weights: tuple[float, ...]
    temperature: float
    difference: float
    error: float

    @property
    def help(self) -> bool:
        """Whether the weights lower the NLL on held-out examples by more than its standard error."""
        return self.difference < -self.error


def fit_pooling_weights(members: Tensor, targets: Tensor) -> PoolingWeights:
    """Return the weights w and the temperature T with the lowest negative log-likelihood, if they help.

        p = softmax(log(sum over k of w_k p_k) / T),    w_k > 0, sum of w_k = 1

    Weights fitted on few examples follow their noise. So the examples are divided into five parts: each is
    predicted with weights and a temperature fitted on the other four, and with equal weights and a
    temperature of these four. Weights are kept if they lower the NLL over all parts by more than
    its standard error, and are then fitted again on all examples; otherwise they are equal. Where the mean
    has no best temperature, as when every prediction is right, it is 1, with a warning, as of
    `fit_temperature`.

    Args:
        members: Each member's probabilities, [K, N, C].
        targets: The true class of each example, none of which the members were trained or tested on.

    References:
        Jordan, Jacobs, "Hierarchical Mixtures of Experts and the EM Algorithm", Neural Computation 1994, for
        mixtures with fitted shares.

    Example:
        Two members of opposite opinions, the first of which is right nine times of ten:

        >>> import torch
        >>> from pfge.calibration import fit_pooling_weights
        >>> members = torch.tensor([[0.99, 0.01], [0.01, 0.99]])[:, None].expand(2, 100, 2)
        >>> targets = torch.tensor([0] * 9 + [1]).repeat(10)
        >>> fitted = fit_pooling_weights(members, targets)
        >>> fitted.help, fitted.weights[0] > 0.5
        (True, True)
    """
    require_members(members, targets, "weights")
    members, targets = members.detach().to("cpu", torch.float64), targets.to("cpu", torch.int64)
    equal = (1 / len(members),) * len(members)

    def fit(some: Tensor, of_some: Tensor) -> Temperatures:
        weights, temperature = _fit(some, of_some)
        return Temperatures(temperature, weights=weights)

    gain = gain_on_held_out(fit, members, targets)
    found = PoolingWeights(*_fit(members, targets), *gain)
    if found.help:
        return found
    mean = fit_temperature(log_probabilities(members.mean(dim=0)), targets)
    return PoolingWeights(equal, mean.value, *gain)


def _fit(members: Tensor, targets: Tensor) -> tuple[tuple[float, ...], float]:
    """Return weights and a temperature that minimize the negative log-likelihood, from equal weights on.

    The weights are the softmax of free numbers, the last of which is fixed at 0, so that all are above 0.
    Where their mean has no best temperature, they would be where the search stopped; they are then equal.
    """
    count = len(members)
    equal = (1 / count,) * count
    plain = temperature_of(members.mean(dim=0), targets).value
    start = torch.zeros(count, dtype=torch.float64)
    start[-1] = math.log(plain)

    def weights(free: Tensor) -> Tensor:
        return torch.cat([free[:-1], free.new_zeros(1)]).softmax(dim=0)

    def loss(free: Tensor) -> Tensor:
        pooled = torch.tensordot(weights(free), members, dims=1).clamp(min=SMALLEST).log() / free[-1].exp()
        return torch.nn.functional.cross_entropy(pooled, targets)

    if (free := minimize(loss, start)) is None:
        return equal, plain
    fitted = weights(free).clamp(min=LEAST_WEIGHT)
    fitted /= fitted.sum()
    # The best temperature of these weights, by the fit that all temperatures are found by.
    pooled = temperature_of(torch.tensordot(fitted, members, dims=1), targets)
    return (tuple(fitted.tolist()), pooled.value) if pooled.converged else (equal, plain)
