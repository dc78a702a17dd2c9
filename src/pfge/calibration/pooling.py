"""Pooling parameters (member weights, a shared temperature) fitted on held-out predictions."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pfge.calibration.temperatures import (
    Temperature,
    Temperatures,
    fit_temperature,
    log_probabilities,
    scale_probabilities,
)
from pfge.errors import InvalidValueError
from pfge.metrics.scores import SMALLEST, require_probabilities, require_targets, widen
from pfge.rounding import is_lower

FOLDS = 5


def require_members(members: Tensor, targets: Tensor, what: str) -> None:
    """Raise a ValueError unless there are enough members and examples to fit `what`."""
    if members.ndim != 3 or len(members) < 2:
        raise InvalidValueError(
            f"fitting {what} needs predictions [K, N, C] of at least two members, with one class for "
            f"each example, got {list(members.shape)}"
        )
    for member in members:
        require_probabilities(member)
    require_targets(members[0], targets)
    if len(targets) < 2 * FOLDS:
        raise InvalidValueError(f"fitting {what} needs at least {2 * FOLDS} examples, got {len(targets)}")


def temperature_of(probabilities: Tensor, targets: Tensor) -> Temperature:
    """Return the best temperature of probabilities [N, C], without a warning if the fit does not converge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_temperature(log_probabilities(probabilities), targets)


def minimize(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor | None:
    """Return the numbers with the lowest loss, found by L-BFGS, or None if they are not finite."""
    free = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([free], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(free)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    found = free.detach()
    return found if bool(found.isfinite().all()) else None


def gain_on_held_out(
    fit: Callable[[Tensor, Tensor], Temperatures], members: Tensor, targets: Tensor
) -> tuple[float, float]:
    """Return the NLL of a fit minus that of the pooled temperature alone, and its standard error.

    The examples are divided into five folds; each is predicted with the fit on the other four.
    """
    parts = torch.arange(len(targets)) % FOLDS
    differences = torch.zeros(len(targets), dtype=torch.float64)
    for part in range(FOLDS):
        held_out = parts == part
        rest, of_rest = members[:, ~held_out], targets[~held_out]
        pooled = Temperatures(temperature_of(rest.mean(dim=0), of_rest).value)
        with_fit, without = (
            _log_loss(members[:, held_out], targets[held_out], found)
            for found in (fit(rest, of_rest), pooled)
        )
        differences[held_out] = with_fit - without
    return differences.mean().item(), (differences.std() / len(differences) ** 0.5).item()


def _log_loss(members: Tensor, targets: Tensor, temperatures: Temperatures) -> Tensor:
    each = [scale_probabilities(member, temperatures.of_member(k)) for k, member in enumerate(members)]
    weights = torch.tensor([temperatures.weight_of(k) for k in range(len(members))], dtype=torch.float64)
    pooled = torch.tensordot(weights / weights.sum(), torch.stack(each), dims=1)
    scaled = scale_probabilities(pooled, temperatures.pooled)
    return -scaled.gather(1, targets[:, None])[:, 0].clamp(min=SMALLEST).log()


LEAST_WEIGHT = 1e-6


@dataclass(frozen=True)
class PoolingWeights:
    """Weights of members and the temperature of their weighted mean.

    Attributes:
        weights: The weight of each member, above 0, with the sum 1; the same for all if weights did not help.
        temperature: The temperature of the weighted mean.
        difference: NLL with weights minus NLL with equal weights, on examples that neither was fitted on.
        error: The standard error of the difference over these examples.

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
        """Whether the NLL on held-out examples falls by more than its standard error and than rounding."""
        return is_lower(self.difference, 0.0, error=self.error)


def fit_pooling_weights(members: Tensor, targets: Tensor) -> PoolingWeights:
    """Return the weights w and the temperature T with the lowest negative log-likelihood, if they help.

        p = softmax(log(sum over k of w_k p_k) / T),    w_k > 0, sum of w_k = 1

    Weights fitted on few examples follow their noise. So the examples are divided into five folds. Each fold
    is predicted with weights and a temperature fitted on the other four, and with equal weights and a
    temperature fitted on these four. Weights are kept if they lower the NLL over all folds by more than its
    standard error and by more than rounding, and are then fitted again on all examples. Otherwise they are
    equal. If no temperature of the mean is best, as when every prediction is right, it is 1, with a warning,
    as in `fit_temperature`.

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
    members, targets = widen(members.detach().cpu()), targets.to("cpu", torch.int64)
    equal = (1 / len(members),) * len(members)

    def fit(some: Tensor, of_some: Tensor) -> Temperatures:
        weights, temperature = _fit_weights(some, of_some)
        return Temperatures(temperature, weights=weights)

    gain = gain_on_held_out(fit, members, targets)
    found = PoolingWeights(*_fit_weights(members, targets), *gain)
    if found.help:
        return found
    mean = fit_temperature(log_probabilities(members.mean(dim=0)), targets)
    return PoolingWeights(equal, mean.value, *gain)


def _fit_weights(members: Tensor, targets: Tensor) -> tuple[tuple[float, ...], float]:
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


HIGHEST = 10.0
"""The highest shared temperature; 1 / HIGHEST is the lowest. At 10 the pool is close to that of mean logits,
and float32 still has enough digits: the mean's temperature is then about a tenth of its usual value."""


@dataclass(frozen=True)
class SharedTemperature:
    """The temperature of all members, and that of their mean.

    Attributes:
        members: The temperature of each member; 1 if that did not help.
        pooled: The temperature of the mean of these members.
        difference: NLL with both minus NLL with only the mean's, on examples that neither was fitted on.
        error: The standard error of the difference over these examples.

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
        """Whether the NLL on held-out examples falls by more than its standard error and than rounding."""
        return is_lower(self.difference, 0.0, error=self.error)


def fit_shared_temperature(members: Tensor, targets: Tensor) -> SharedTemperature:
    """Return the temperatures S and T with the lowest negative log-likelihood, if S helps.

        p = softmax(log(q) / T),    q = mean over k of softmax(z_k / S)

    S decides the kind of mean. With S = 1 it is the mean of the probabilities, in which one member that is
    almost sure outvotes several that doubt. The larger S is, the closer p is to the softmax of the mean of
    the logits, in which a class that one member excludes is excluded. T then sets the confidence. S is from
    0.1 to 10.

    As in `fit_pooling_weights`, S is kept if it lowers the NLL on each fifth of the examples with
    temperatures fitted on the other four; otherwise it is 1. If no T is best, as when every prediction is
    right, T is 1, with a warning, as in `fit_temperature`.

    Args:
        members: Each member's probabilities, [K, N, C].
        targets: The true class of each example, none of which the members were trained or tested on.

    References:
        Rahaman, Thiery, "Uncertainty Quantification and Deep Ensembles", NeurIPS 2021, for temperatures
        before and after pooling. Hinton, "Products of Experts", ICANN 1999, for means of logits.

    Example:
        Members whose logits are the true ones plus independent noise, so the mean of the logits is the best
        estimate:

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
    members, targets = widen(members.detach().cpu()), targets.to("cpu", torch.int64)

    def fit(some: Tensor, of_some: Tensor) -> Temperatures:
        shared, pooled = _fit_shared(some, of_some)
        return Temperatures(pooled, members=(shared,) * len(some))

    gain = gain_on_held_out(fit, members, targets)
    found = SharedTemperature(*_fit_shared(members, targets), *gain)
    if found.help:
        return found
    mean = fit_temperature(log_probabilities(members.mean(dim=0)), targets)
    return SharedTemperature(1.0, mean.value, *gain)


def _fit_shared(members: Tensor, targets: Tensor) -> tuple[float, float]:
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
