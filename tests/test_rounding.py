"""Choices between values that differ by rounding only are the same on every machine."""

import doctest
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pfge.rounding
from pfge.calibration import fit_noise_variance
from pfge.packed.encode import find_components
from pfge.rounding import first_lowest, is_lower, lowest_first

LAST_DIGITS = [0.0, 1e-7, -1e-7]


def test_the_examples_do_what_they_show() -> None:
    assert doctest.testmod(pfge.rounding).failed == 0


@pytest.mark.parametrize("size", [1e-9, 0.3, 1.0, 2e4])
def test_a_gain_must_exceed_float32_rounding_of_a_value_of_any_size(size: float) -> None:
    for steps in range(-8, 9):  # as many float32 numbers apart as eight operations may cause
        other = size * (1 + steps * torch.finfo(torch.float32).eps)
        assert not is_lower(other, size)
    assert is_lower(size - 2e-6 * max(size, 1), size)


def test_a_gain_must_exceed_its_standard_error() -> None:
    assert is_lower(-0.011, 0.0, error=0.01)
    assert not is_lower(-0.009, 0.0, error=0.01)
    assert not is_lower(-1e-9, 0.0, error=1e-12)


def test_values_in_a_unit_of_the_user_are_compared_at_their_own_size() -> None:
    assert is_lower(1e-9, 2e-9, scale=0)
    assert not is_lower(1e-9, 1e-9 * (1 + 1e-7), scale=0)


def test_a_finite_value_is_below_infinity_and_nothing_is_below_nan() -> None:
    assert is_lower(5.0, inf)
    assert not any(is_lower(a, b) for a, b in ((inf, inf), (inf, 5.0), (nan, 5.0), (5.0, nan)))
    assert first_lowest([nan, inf, 2.0], key=float) == 2.0
    assert first_lowest([inf, nan], key=float) == inf


@pytest.mark.parametrize("last", LAST_DIGITS)
def test_of_candidates_that_are_equal_up_to_rounding_the_first_is_taken(last: float) -> None:
    values = {"worse": 0.6, "first": 0.5, "second": 0.5 + last}
    assert first_lowest(values, key=values.__getitem__) == "first"
    assert lowest_first(values, key=values.__getitem__) == ["first", "second", "worse"]


@pytest.mark.parametrize("last", LAST_DIGITS)
def test_the_sign_of_a_component_does_not_depend_on_rounding(
    last: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas = torch.tensor([[1.0, 2.0, 3.0], [-1.0, -2.0, -3.0]])  # the eigenvector is (1, -1) / sqrt(2)
    vectors = torch.tensor([[1.0, -1.0], [1.0, 1.0 + last]], dtype=torch.float64) * 0.5**0.5

    def eigh(_: Any) -> Any:
        return SimpleNamespace(eigenvectors=vectors)  # by growing eigenvalue, as another library rounds them

    monkeypatch.setattr(torch.linalg, "eigh", eigh)
    mix, components = find_components(deltas, 1)
    assert mix[0, 0] > 0 > mix[1, 0]
    torch.testing.assert_close(mix.float() @ components, deltas, rtol=1e-3, atol=0)


@pytest.mark.parametrize("last", LAST_DIGITS)
def test_of_two_noises_that_are_as_likely_the_smaller_is_taken(last: float) -> None:
    """Half of the examples have errors that the spread explains, for any noise that is small beside it."""
    predictions = torch.tensor([[0.0, 1 + 1e8]] * 50, dtype=torch.float64)
    targets = torch.full((50,), 1e4, dtype=torch.float64) * (1 + last)
    assert fit_noise_variance(predictions, targets) < 1e3
