import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfge.calibration import (
    fit_member_temperatures,
    fit_temperature,
    log_probabilities,
    scale_logits,
    scale_probabilities,
)
from pfge.metrics import accuracy, negative_log_likelihood
from tests.calibration.held_out import random_logits


@pytest.mark.parametrize(("gap", "right"), [(3.0, 80), (0.2, 80), (40.0, 51), (0.01, 99), (300.0, 60)])
def test_two_classes_with_one_gap_have_a_closed_form(gap: float, right: int) -> None:
    """The accuracy a is the probability of the favored class when gap / T = log(a / (1 - a))."""
    logits = torch.tensor([[gap, 0.0]], dtype=torch.float64).repeat(100, 1)
    targets = (torch.arange(100) >= right).long()
    expected = gap / math.log(right / (100 - right))
    found = fit_temperature(logits, targets)
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert found.converged


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [0.05, 1, 30])
def test_scipy_finds_the_same_temperature(seed: int, scale: float) -> None:
    logits, targets = random_logits(seed)
    logits = logits * scale
    best = minimize_scalar(
        lambda position: cross_entropy(logits * math.exp(position), targets).item(),
        bounds=(math.log(1e-3), math.log(1e3)),
        method="bounded",
        options={"xatol": 1e-10},
    )
    # A search by values finds the place of a minimum to the root of their precision.
    assert fit_temperature(logits, targets).value == pytest.approx(math.exp(-best.x), rel=1e-6)


def test_the_temperature_that_targets_were_drawn_at_is_found() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(40_000, 4, generator=generator)
    targets = (logits / 2.5).softmax(1).multinomial(1, generator=generator)[:, 0]
    assert fit_temperature(logits, targets).value == pytest.approx(2.5, rel=0.02)


@given(st.integers(0, 1000), st.floats(0.1, 10))
@settings(max_examples=15, deadline=None)
def test_the_fit_never_raises_the_loss_and_keeps_the_accuracy(seed: int, scale: float) -> None:
    logits, targets = random_logits(seed, examples=100)
    before = (scale * logits).softmax(1)
    temperature = fit_temperature(log_probabilities(before), targets).value
    after = scale_probabilities(before, temperature)
    assert negative_log_likelihood(after, targets) <= negative_log_likelihood(before, targets) + 1e-12
    assert accuracy(after, targets) == accuracy(before, targets)


def test_logits_and_log_probabilities_have_one_temperature() -> None:
    logits, targets = random_logits()
    of_probabilities = fit_temperature(log_probabilities(logits.softmax(1)), targets).value
    assert fit_temperature(logits, targets).value == pytest.approx(of_probabilities, rel=1e-9)


def test_a_fitted_temperature_needs_no_further_fit() -> None:
    logits, targets = random_logits()
    scaled = scale_logits(logits, fit_temperature(logits, targets).value)
    assert fit_temperature(scaled, targets).value == pytest.approx(1, abs=1e-9)


def test_each_member_has_a_temperature_of_its_own() -> None:
    logits, targets = random_logits()
    members = torch.stack([logits, 2 * logits, logits / 3]).softmax(2)
    one = fit_temperature(logits, targets).value
    assert fit_member_temperatures(members, targets) == pytest.approx([one, 2 * one, one / 3], rel=1e-6)
    assert fit_member_temperatures(iter(list(members)), targets) == fit_member_temperatures(members, targets)


# Fits that do not converge

SURE = torch.tensor([[3.0, 0.0], [0.0, 2.0]])


@pytest.mark.parametrize(
    ("logits", "targets", "cause"),
    [
        (SURE, [0, 1], "no class is more probable than the target, so sharper predictions are never worse"),
        (torch.zeros(2, 3), [0, 2], "sharper predictions are never worse"),
        (SURE, [1, 0], "do not beat chance, so flatter predictions are never worse"),
        (SURE, [1, 1], "do not beat chance"),
        (torch.tensor([[1e4, 0.0]] * 3), [0, 0, 1], "the best temperature is above 1000"),
        (torch.tensor([[1e-6, 0.0]] * 3), [0, 0, 1], "the best temperature is below 0.001"),
        (torch.tensor([[1e300, -1e300], [0, 1e300]], dtype=torch.float64), [0, 0], "too large"),
    ],
)
def test_a_fit_that_does_not_converge_warns_and_changes_nothing(
    logits: Tensor, targets: list[int], cause: str
) -> None:
    with pytest.warns(UserWarning, match=f"the temperature stays 1, .* did not converge: .*{cause}"):
        found = fit_temperature(logits, torch.tensor(targets))
    assert (found.value, found.converged) == (1, False)


def test_a_fit_that_converges_does_not_warn() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert fit_temperature(*random_logits()).converged
    assert not caught


@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (torch.tensor([[math.nan, 0]]), torch.tensor([0]), "logits must be finite"),
        (torch.tensor([[-math.inf, 0]]), torch.tensor([0]), r"take those .* from log_probabilities\(\)"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), "whole numbers from 0 to 2, got torch.int64 from 0 to 3"),
        (torch.zeros(2, 3), torch.tensor([0]), r"targets must be \[2\], .*, got \[1\]"),
        (torch.zeros(0, 3), torch.tensor([]).long(), "at least one example, got none"),
        (torch.zeros(2, 1), torch.tensor([0, 0]), "at least two classes, got 1"),
    ],
)
def test_what_is_no_held_out_prediction_is_refused(logits: Tensor, targets: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_temperature(logits, targets)


def test_members_that_are_no_probabilities_are_refused() -> None:
    logits, targets = random_logits()
    with pytest.raises(ValueError, match="apply softmax"):
        fit_member_temperatures([logits], targets)
