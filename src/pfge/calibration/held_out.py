"""Ways to pool members that are fitted on examples, and whether one of them helps on others."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from pfge.calibration.scaling import log_probabilities, scale_probabilities
from pfge.calibration.temperature_fitting import fit_temperature
from pfge.calibration.temperatures import Temperature, Temperatures
from pfge.metrics.checks import SMALLEST, require_probabilities, require_targets

FOLDS = 5


def require_members(members: Tensor, targets: Tensor, what: str) -> None:
    """Raise a ValueError unless there are members and examples enough to fit what is said."""
    if members.ndim != 3 or len(members) < 2:
        raise ValueError(
            f"{what} are fitted to the predictions of at least two members, [K, N, C], got "
            f"{list(members.shape)}; one class for each example is needed"
        )
    for member in members:
        require_probabilities(member)
    require_targets(members[0], targets)
    if len(targets) < 2 * FOLDS:
        raise ValueError(f"{what} are fitted on at least {2 * FOLDS} examples, got {len(targets)}")


def temperature_of(probabilities: Tensor, targets: Tensor) -> Temperature:
    """Return the best temperature of probabilities [N, C], without a warning if there is none."""
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

    The examples are divided into five parts: each is predicted with what was fitted on the other four.
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
