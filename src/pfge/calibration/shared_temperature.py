"""A temperature that all members share before they are pooled, fitted together with that of their mean."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pfge.calibration.held_out import gain_on_held_out, minimize, require_members, temperature_of
from pfge.calibration.scaling import log_probabilities
from pfge.calibration.temperature_fitting import fit_temperature
from pfge.calibration.temperatures import Temperatures
from pfge.metrics.checks import SMALLEST

HIGHEST = 10.0
"""Of the shared temperature, and 1 / HIGHEST is the lowest. At 10 the pool is close to that of mean logits,
and float32 still has digits enough: the mean's temperature is then about a tenth of what it would be."""


@dataclass(frozen=True)
class SharedTemperature:
    """The temperature of all members, and that of their mean.

    Attributes:
        members: What the logits of each member are divided by; 1 if that did not help.
        pooled: The temperature of the mean of these members.
        difference: NLL with both minus NLL with only the mean's, on examples that neither was fitted on.
        error: Its standard error over these examples.

    Example:
        >>> from pfge.calibration import SharedTemperature
        >>> SharedTemperature(members=4.5, pooled=0.4, difference=-0.005, error=0.001).help
        True
    """

    members: float
    pooled: float
    difference: float
    error: float

    @property
    def help(self) -> bool:
        """Whether the shared one lowers the NLL on held-out examples by more than its standard error."""
        return self.difference < -self.error


def fit_shared_temperature(members: Tensor, targets: Tensor) -> SharedTemperature:
    """Return the temperatures S and T with the lowest negative log-likelihood, if S helps.

        p = softmax(log(q) / T),    q = mean over k of softmax(z_k / S)

    S decides what kind of mean is taken. With S = 1 it is that of the probabilities: one member that
    is almost sure outvotes several that doubt. The larger S is, the closer is p to the softmax of the
    mean of the logits, in which a class that one member excludes is excluded. T then sets the confidence.
    S is from 0.1 to 10.

    Whether S helps is decided as for `fit_pooling_weights`: on each fifth of the examples, with temperatures
    that are fitted on the other four. If it does not, S is 1. Where the mean has no best temperature, as
    when every prediction is right, T is 1, with a warning, as of `fit_temperature`.

    Args:
        members: Each member's probabilities, [K, N, C].
        targets: The true class of each example, none of which the members were trained or tested on.

    References:
        Rahaman, Thiery, "Uncertainty Quantification and Deep Ensembles", NeurIPS 2021, for temperatures
        before and after pooling. Hinton, "Products of Experts", ICANN 1999, for means of logits.

    Example:
        Members whose logits are the true ones with noise of their own, so that the mean of the logits is what
        is best known of them:

        >>> import torch
        >>> from pfge.calibration import fit_shared_temperature
        >>> noise = torch.Generator().manual_seed(0)
        >>> logits = 3 * torch.randn(1000, 4, generator=noise)
        >>> targets = logits.softmax(dim=1).multinomial(1, generator=noise)[:, 0]
        >>> members = logits + 2 * torch.randn(5, 1000, 4, generator=noise)
        >>> fitted = fit_shared_temperature(members.softmax(dim=2), targets)
        >>> fitted.help, fitted.members > 5
        (True, True)
    """
    require_members(members, targets, "temperatures of members and of their mean")
    members, targets = members.detach().to("cpu", torch.float64), targets.to("cpu", torch.int64)

    def fit(some: Tensor, of_some: Tensor) -> Temperatures:
        shared, pooled = _fit(some, of_some)
        return Temperatures(pooled, members=(shared,) * len(some))

    gain = gain_on_held_out(fit, members, targets)
    found = SharedTemperature(*_fit(members, targets), *gain)
    if found.help:
        return found
    mean = fit_temperature(log_probabilities(members.mean(dim=0)), targets)
    return SharedTemperature(1.0, mean.value, *gain)


def _fit(members: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return both temperatures; S = HIGHEST ** tanh(u) stays within its bounds for any u.

    Where their mean has no best temperature, S would only be where the search stopped: it is 1 then.
    """
    plain = temperature_of(members.mean(dim=0), targets).value
    logits = members.clamp(min=SMALLEST).log()

    def log_mean(shared: Tensor) -> Tensor:
        return (logits / shared).log_softmax(dim=2).logsumexp(dim=0) - math.log(len(members))

    def loss(free: Tensor) -> Tensor:
        pooled = log_mean(HIGHEST ** free[0].tanh()) / free[1].exp()
        return torch.nn.functional.cross_entropy(pooled, targets)

    start = torch.tensor([0.0, math.log(plain)], dtype=torch.float64)
    if (free := minimize(loss, start)) is None:
        return 1.0, plain
    shared = HIGHEST ** free[0].tanh()
    # The best temperature of this mean, by the fit that all temperatures are found by.
    pooled = temperature_of(log_mean(shared).exp(), targets)
    return (shared.item(), pooled.value) if pooled.converged else (1.0, plain)
