import math

import pytest
import torch

from pfge.calibration import Temperatures, scale_logits, scale_probabilities
from tests.calibration.held_out import random_logits


def test_scaling_worked_out_by_hand() -> None:
    # Square roots of 0.64 and 0.36 are 0.8 and 0.6, which sum to 1.4.
    found = scale_probabilities(torch.tensor([[0.64, 0.36]]), 2)
    assert found[0].tolist() == pytest.approx([0.8 / 1.4, 0.6 / 1.4])
    assert scale_logits(torch.tensor([[3.0, -1.0]]), 2).tolist() == [[1.5, -0.5]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_temperature_of_one_changes_no_bit(dtype: torch.dtype) -> None:
    logits = random_logits()[0].to(dtype)
    probabilities = torch.cat([logits.softmax(1), torch.eye(5, dtype=dtype)])
    assert torch.equal(scale_probabilities(probabilities, 1.0), probabilities)
    assert torch.equal(scale_logits(logits, 1.0), logits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_probability_of_zero_stays_finite_at_any_temperature(dtype: torch.dtype) -> None:
    for temperature in (1e-3, 0.5, 2.0, 1e3):
        found = scale_probabilities(torch.tensor([[1, 0]], dtype=dtype), temperature)
        assert found.dtype == dtype
        # The least probability t becomes t^(1/T) / (1 + t^(1/T)).
        smallest = 2**-24 if dtype == torch.float16 else torch.finfo(torch.float32).tiny
        least = smallest ** (1 / temperature)
        assert found[0, 1].item() == pytest.approx(least / (1 + least), rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("temperature", [0, -1, math.inf, math.nan])
def test_what_is_no_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite, got"):
        scale_probabilities(torch.tensor([[0.5, 0.5]]), temperature)
    with pytest.raises(ValueError, match="must be positive and finite, got"):
        scale_logits(torch.tensor([[0.5, 0.5]]), temperature)


def test_temperatures_of_labels_are_no_temperature_of_classes() -> None:
    with pytest.raises(ValueError, match="one temperature is needed, got 2; only labels have one each"):
        scale_probabilities(torch.tensor([[0.5, 0.5]]), (1.0, 2.0))
    with pytest.raises(ValueError, match="at least one label, got none"):
        Temperatures(())
    with pytest.raises(ValueError, match="must be positive and finite, got -1"):
        Temperatures((1.0, -1.0))
