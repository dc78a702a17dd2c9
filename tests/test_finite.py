import math

import pytest
import torch

from pfge.weights import find_non_finite


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_non_finite_tensor_is_named(bad: float) -> None:
    weights = {"a": torch.zeros(3), "b": torch.tensor([0.0, bad, 1.0]), "n": torch.tensor(3)}
    assert find_non_finite(weights) == "b"


def test_large_finite_weights_are_finite() -> None:
    weights = {
        "a": torch.tensor([1e300, 1e300], dtype=torch.float64),
        "b": torch.full((3,), 3e38),  # their sum overflows
        "c": torch.ones(2).bfloat16(),
        "e": torch.zeros(0),
    }
    assert find_non_finite(weights) is None


def test_a_non_finite_tensor_is_found_beside_one_whose_sum_overflows() -> None:
    weights = {"a": torch.full((3,), 3e38), "b": torch.tensor([math.inf, -math.inf]), "c": torch.tensor(1j)}
    assert find_non_finite(weights) == "b"


def test_a_non_finite_entry_is_found_wherever_it_is_in_memory() -> None:
    image = torch.zeros(2, 3, 8, 8)
    for tensor in (
        image,
        image.to(memory_format=torch.channels_last),
        torch.zeros(300, 300),
        image[:, :, ::2],
    ):
        assert find_non_finite({"a": tensor}) is None
        tensor[-1, -1] = math.nan
        assert find_non_finite({"a": tensor}) == "a"
        tensor.zero_()
