"""A temperature that members share, and that of their mean, against another optimizer."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from pfge.calibration import SharedTemperature, fit_shared_temperature


def noisy_members(noise: float, examples: int = 600, sharpness: float = 1.0) -> tuple[Tensor, Tensor]:
    """Five members whose logits are those that classes were drawn by, with noise of their own."""
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(examples, 4, generator=generator, dtype=torch.float64)
    targets = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
    each = noise * torch.randn(5, examples, 4, generator=generator, dtype=torch.float64)
    return (sharpness * (logits + each)).softmax(dim=2), targets


def nll(shared: float, pooled: float, members: Tensor, targets: Tensor) -> float:
    """The definition, in numpy."""
    powered = members.numpy() ** (1 / shared)
    mean = (powered / powered.sum(axis=2, keepdims=True)).mean(axis=0) ** (1 / pooled)
    chosen = mean[np.arange(len(targets)), targets.numpy()] / mean.sum(axis=1)
    return float(-np.log(chosen).mean())


def test_both_temperatures_are_those_of_another_optimizer() -> None:
    members, targets = noisy_members(2.0)
    found = fit_shared_temperature(members, targets)
    assert found.help
    best = minimize(
        lambda x: nll(np.exp(x[0]), np.exp(x[1]), members, targets),
        [0.0, 0.0],
        method="Nelder-Mead",
        bounds=[(-np.log(10), np.log(10)), (-7, 7)],
        options={"xatol": 1e-7, "fatol": 1e-13, "maxiter": 4000},
    )
    assert nll(found.members, found.pooled, members, targets) <= best.fun + 1e-8
    assert (found.members, found.pooled) == pytest.approx(np.exp(best.x), rel=2e-2)


@pytest.mark.slow
def test_a_mean_of_logits_is_found_where_it_is_the_right_one() -> None:
    # The noise of logits is normal, so that their mean is what is best known of them.
    members, targets = noisy_members(2.0, examples=2000)
    found = fit_shared_temperature(members, targets)
    logits = members.log().mean(dim=0)
    of_logits = min(
        torch.nn.functional.cross_entropy(logits / t, targets).item() for t in np.linspace(0.5, 4, 351)
    )
    of_mean = min(nll(1.0, t, members, targets) for t in np.linspace(0.2, 4, 381))
    both = nll(found.members, found.pooled, members, targets)
    assert both < of_mean - 0.01
    assert both == pytest.approx(of_logits, abs=2e-3)


@pytest.mark.slow
def test_the_difference_is_that_of_examples_that_were_not_fitted() -> None:
    members, targets = noisy_members(2.0, examples=60)
    found = fit_shared_temperature(members, targets)
    differences = []
    for part in range(5):
        held_out = torch.arange(60) % 5 == part
        rest, of_rest = members[:, ~held_out], targets[~held_out]
        grid = [(s, t / s) for s in np.geomspace(0.5, 10, 61) for t in np.geomspace(0.5, 5, 161)]
        shared, warm = min(grid, key=lambda x: nll(*x, rest, of_rest))
        alone = min(np.geomspace(0.3, 5, 801), key=lambda t: nll(1.0, t, rest, of_rest))
        for temperatures, sign in (((shared, warm), 1), ((1.0, alone), -1)):
            differences.append(sign * 12 * nll(*temperatures, members[:, held_out], targets[held_out]))
    assert found.difference == pytest.approx(sum(differences) / 60, abs=3e-3)


def test_members_that_are_the_same_need_one_temperature_only() -> None:
    members, targets = noisy_members(0.0, sharpness=2.0)
    found = fit_shared_temperature(members, targets)
    assert not found.help
    assert found.members == 1
    best = min(np.linspace(0.5, 6, 5501), key=lambda t: nll(1.0, t, members, targets))
    assert found.pooled == pytest.approx(best, abs=2e-3)


def test_the_shared_temperature_stays_within_its_bounds() -> None:
    # The more members are sharpened, the higher is the temperature that undoes it.
    members, targets = noisy_members(2.0, sharpness=12.0)
    assert 5 < fit_shared_temperature(members, targets).members <= 10


def test_help_is_more_than_the_standard_error() -> None:
    assert SharedTemperature(2.0, 1.0, difference=-0.011, error=0.01).help
    assert not SharedTemperature(2.0, 1.0, difference=-0.009, error=0.01).help


def test_members_of_bfloat16_are_fitted_nearly_as_those_of_float64() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(300, 40, generator=generator, dtype=torch.float64)
    targets = logits.softmax(dim=1).multinomial(1, generator=generator)[:, 0]
    noise = 2 * torch.randn(3, 300, 40, generator=generator, dtype=torch.float64)
    members = (logits + noise).softmax(dim=2)
    expected, found = (
        fit_shared_temperature(members, targets),
        fit_shared_temperature(members.bfloat16(), targets),
    )
    assert found.help == expected.help
    assert found.difference == pytest.approx(expected.difference, abs=0.005)


def test_rounding_is_no_help() -> None:
    assert not SharedTemperature(2.0, 1.0, difference=-3e-17, error=1e-17).help


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [0.0, 1e-7])
def test_members_that_differ_by_rounding_share_no_temperature(size: float, seed: int) -> None:
    members, targets = noisy_members(0.0, examples=200, sharpness=2.0)
    generator = torch.Generator().manual_seed(seed)
    members = members * (1 + size * torch.randn(members.shape, generator=generator, dtype=torch.float64))
    found = fit_shared_temperature(members, targets)
    assert (found.help, found.members) == (False, 1)


@pytest.mark.parametrize("shape", [(1, 20, 3), (20, 3), (2, 20, 3, 4)])
def test_two_members_and_one_class_for_each_example_are_needed(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"predictions \[K, N, C\] of at least two members, .* got"):
        fit_shared_temperature(torch.full(shape, 1 / 3), torch.zeros(20, dtype=torch.int64))


def test_a_few_examples_are_needed() -> None:
    members, targets = noisy_members(1.0, examples=9)
    with pytest.raises(ValueError, match="at least 10 examples, got 9"):
        fit_shared_temperature(members, targets)


def test_nothing_is_fitted_to_targets_by_chance() -> None:
    """No prediction is of any use then, so that less confidence is always better."""
    generator = torch.Generator().manual_seed(0)
    members = torch.randn(3, 60, 4, generator=generator).softmax(dim=2)
    targets = members.mean(dim=0).argmin(dim=1)  # worse than chance
    with pytest.warns(UserWarning, match="the temperature stays 1, as its fit did not converge"):
        found = fit_shared_temperature(members, targets)
    assert (found.members, found.pooled) == (1.0, 1.0)
