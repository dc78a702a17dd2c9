"""Weights of members, fitted together with the temperature of their mean on held-out predictions."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from pfge.calibration.scaling import log_probabilities, scale_probabilities
from pfge.calibration.temperature_fitting import fit_temperature
from pfge.metrics.checks import SMALLEST, require_probabilities, require_targets

FOLDS = 5
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
    its standard error, and are then fitted again on all examples; otherwise they are equal.

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
    _require_members(members, targets)
    members, targets = members.detach().to("cpu", torch.float64), targets.to("cpu", torch.int64)
    equal = (1 / len(members),) * len(members)
    parts = torch.arange(len(targets)) % FOLDS
    differences = torch.zeros(len(targets), dtype=torch.float64)
    for part in range(FOLDS):
        held_out = parts == part
        fitted = _fit(members[:, ~held_out], targets[~held_out])
        plain = equal, _temperature(members[:, ~held_out].mean(dim=0), targets[~held_out])
        with_weights, without = (
            _log_loss(members[:, held_out], targets[held_out], *found) for found in (fitted, plain)
        )
        differences[held_out] = with_weights - without
    difference = differences.mean().item()
    error = (differences.std() / len(differences) ** 0.5).item()
    found = PoolingWeights(*_fit(members, targets), difference, error)
    if found.help:
        return found
    return PoolingWeights(equal, _temperature(members.mean(dim=0), targets), difference, error)


def _require_members(members: Tensor, targets: Tensor) -> None:
    if members.ndim != 3 or len(members) < 2:
        raise ValueError(
            "weights are fitted to the predictions of at least two members, [K, N, C], got "
            f"{list(members.shape)}; one class for each example is needed"
        )
    for member in members:
        require_probabilities(member)
    require_targets(members[0], targets)
    if len(targets) < 2 * FOLDS:
        raise ValueError(f"weights are fitted on at least {2 * FOLDS} examples, got {len(targets)}")


def _temperature(probabilities: Tensor, targets: Tensor) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one that cannot be found stays 1; so it does for the weighted mean
        return fit_temperature(log_probabilities(probabilities), targets).value


def _fit(members: Tensor, targets: Tensor) -> tuple[tuple[float, ...], float]:
    """Return weights and a temperature that minimize the negative log-likelihood, from equal weights on.

    The weights are the softmax of free numbers, the last of which is fixed at 0, so that all are above 0.
    """
    count = len(members)
    start = _temperature(members.mean(dim=0), targets)
    free = torch.zeros(count, dtype=torch.float64)
    free[-1] = torch.tensor(start).log()
    free.requires_grad_()
    optimizer = torch.optim.LBFGS([free], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def weights() -> Tensor:
        return torch.cat([free[:-1], free.new_zeros(1)]).softmax(dim=0)

    def loss() -> Tensor:
        optimizer.zero_grad()
        pooled = torch.tensordot(weights(), members, dims=1).clamp(min=SMALLEST).log() / free[-1].exp()
        mean = torch.nn.functional.cross_entropy(pooled, targets)
        mean.backward()  # type: ignore[no-untyped-call]
        return mean

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    fitted = weights().detach()
    if not bool(free.isfinite().all()):
        return (1 / count,) * count, start
    fitted = fitted.clamp(min=LEAST_WEIGHT)
    fitted /= fitted.sum()
    # The best temperature of these weights, by the fit that all temperatures are found by.
    return tuple(fitted.tolist()), _temperature(torch.tensordot(fitted, members, dims=1), targets)


def _log_loss(members: Tensor, targets: Tensor, weights: tuple[float, ...], temperature: float) -> Tensor:
    pooled = torch.tensordot(torch.tensor(weights, dtype=torch.float64), members, dims=1)
    scaled = scale_probabilities(pooled, temperature)
    return -scaled.gather(1, targets[:, None])[:, 0].clamp(min=SMALLEST).log()
