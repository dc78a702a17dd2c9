"""Weights of members against another optimizer, and what is kept of them."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from pfge.calibration import PoolingWeights, fit_pooling_weights
from tests.calibration.held_out import random_logits


def unlike_members(noises: tuple[float, ...], examples: int = 400) -> tuple[Tensor, Tensor]:
    """Members that see the same logits through noise of their own."""
    logits, targets = random_logits(1, examples)
    generator = torch.Generator().manual_seed(2)
    noisy = [logits + noise * torch.randn(logits.shape, generator=generator) for noise in noises]
    return torch.stack([member.softmax(dim=1) for member in noisy]), targets


def nll(weights: "np.ndarray", temperature: float, members: Tensor, targets: Tensor) -> float:
    """The definition, in numpy."""
    powered = np.tensordot(weights, members.numpy(), axes=1) ** (1 / temperature)
    chosen = powered[np.arange(len(targets)), targets.numpy()] / powered.sum(axis=1)
    return float(-np.log(chosen).mean())


def test_weights_and_temperature_are_those_of_a_constrained_optimizer() -> None:
    members, targets = unlike_members((0.5, 2.0, 4.0))
    found = fit_pooling_weights(members, targets)
    assert found.help
    best = minimize(
        lambda x: nll(x[:3], x[3], members, targets),
        [1 / 3, 1 / 3, 1 / 3, 1.0],
        method="SLSQP",
        bounds=[(1e-6, 1)] * 3 + [(0.05, 20)],
        constraints={"type": "eq", "fun": lambda x: x[:3].sum() - 1},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found.weights == pytest.approx(best.x[:3], abs=2e-3)
    assert found.temperature == pytest.approx(best.x[3], rel=2e-3)
    assert nll(np.array(found.weights), found.temperature, members, targets) <= best.fun + 1e-8
    assert sum(found.weights) == pytest.approx(1, abs=1e-12)


@pytest.mark.slow
def test_the_difference_is_that_of_examples_that_were_not_fitted() -> None:
    members, targets = unlike_members((2.0, 3.0), examples=50)
    found = fit_pooling_weights(members, targets)
    differences = []
    for part in range(5):
        held_out = torch.arange(50) % 5 == part
        rest, of_rest = members[:, ~held_out], targets[~held_out]
        grid = [(w, t) for w in np.linspace(0.01, 0.99, 99) for t in np.linspace(0.5, 4, 141)]
        share, warm = min(grid, key=lambda x: nll(np.array([x[0], 1 - x[0]]), x[1], rest, of_rest))
        alone = min(np.linspace(0.5, 4, 1401), key=lambda t: nll(np.array([0.5, 0.5]), t, rest, of_rest))
        for weights, temperature, sign in (
            (np.array([share, 1 - share]), warm, 1),
            (np.array([0.5, 0.5]), alone, -1),
        ):
            differences.append(sign * 10 * nll(weights, temperature, members[:, held_out], targets[held_out]))
    assert found.difference == pytest.approx(sum(differences) / 50, abs=2e-3)


def test_members_that_are_alike_count_the_same() -> None:
    members, targets = unlike_members((1.0, 1.0, 1.0, 1.0), examples=60)
    found = fit_pooling_weights(members, targets)
    assert not found.help
    assert found.weights == (0.25,) * 4
    best = min(np.linspace(0.5, 4, 3501), key=lambda t: nll(np.full(4, 0.25), t, members, targets))
    assert found.temperature == pytest.approx(best, abs=2e-3)


def test_help_is_more_than_the_standard_error() -> None:
    assert PoolingWeights((0.5, 0.5), 1.0, difference=-0.011, error=0.01).help
    assert not PoolingWeights((0.5, 0.5), 1.0, difference=-0.009, error=0.01).help


def test_members_of_bfloat16_are_fitted_nearly_as_those_of_float64() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(300, 40, generator=generator, dtype=torch.float64)
    targets = logits.softmax(dim=1).multinomial(1, generator=generator)[:, 0]
    noise = 2 * torch.randn(3, 300, 40, generator=generator, dtype=torch.float64)
    members = (logits + noise).softmax(dim=2)
    expected, found = (fit_pooling_weights(each, targets) for each in (members, members.bfloat16()))
    assert found.help == expected.help
    assert found.difference == pytest.approx(expected.difference, abs=0.005)


def test_rounding_is_no_help() -> None:
    assert not PoolingWeights((0.5, 0.5), 1.0, difference=-3e-17, error=1e-17).help


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [0.0, 1e-7])
def test_members_that_differ_by_rounding_count_the_same(size: float, seed: int) -> None:
    members, targets = unlike_members((1.0,) * 2, examples=200)
    generator = torch.Generator().manual_seed(seed)
    alike = members[:1] * (1 + size * torch.randn(members.shape, generator=generator, dtype=torch.float64))
    found = fit_pooling_weights(alike, targets)
    assert (found.help, found.weights) == (False, (0.5, 0.5))


@pytest.mark.parametrize("shape", [(1, 20, 3), (20, 3), (2, 20, 3, 4)])
def test_weights_need_two_members_and_one_class_for_each_example(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"predictions \[K, N, C\] of at least two members, .* got"):
        fit_pooling_weights(torch.full(shape, 1 / 3), torch.zeros(20, dtype=torch.int64))


def test_weights_need_a_few_examples() -> None:
    members, targets = unlike_members((1.0, 2.0), examples=9)
    with pytest.raises(ValueError, match="at least 10 examples, got 9"):
        fit_pooling_weights(members, targets)
