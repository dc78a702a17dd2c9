import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pfge import load_weights
from pfge.weights import (
    accumulator,
    average_into,
    copy_weights,
    count_bytes,
    distance,
    find_non_finite,
    interpolate,
    trained_names,
    view_weights,
)
from tests.toys import assert_same_weights, make_mlp


def test_a_view_is_live() -> None:
    model = nn.Linear(2, 1)
    view_weights(model)["bias"].fill_(7.0)
    assert model.bias.item() == 7.0


def test_a_view_has_the_names_of_the_state_dict() -> None:
    model = make_mlp()
    assert sorted(view_weights(model)) == sorted(model.state_dict())


def test_a_view_leaves_out_buffers_that_are_not_saved() -> None:
    model = nn.Linear(2, 1)
    model.register_buffer("cache", torch.zeros(3), persistent=False)
    assert set(view_weights(model)) == {"weight", "bias"}


def test_trained_names_are_those_of_parameters_that_are_not_frozen() -> None:
    model = make_mlp()
    model[0].weight.requires_grad_(False)
    assert trained_names(model) == {"0.bias", "1.weight", "1.bias", "4.weight", "4.bias"}


def test_a_copy_is_independent() -> None:
    model = nn.Linear(2, 1)
    copied = copy_weights(view_weights(model))
    before = copied["weight"].clone()
    model.weight.data.zero_()
    assert torch.equal(copied["weight"], before)


def test_loading_writes_in_place() -> None:
    model, other = make_mlp(0), make_mlp(1)
    parameter = model[0].weight
    load_weights(model, view_weights(other))
    assert model[0].weight is parameter
    assert_same_weights(view_weights(model), view_weights(other))


def test_loading_into_another_architecture_names_what_differs_and_changes_nothing() -> None:
    model = nn.Linear(2, 1)
    before = copy_weights(view_weights(model))
    with pytest.raises(ValueError, match=r"weight is \[1, 2\] in the model and \[1, 3\] in the weights"):
        load_weights(model, view_weights(nn.Linear(3, 1)))
    with pytest.raises(ValueError, match="only the model has bias"):
        load_weights(model, {"weight": torch.zeros(1, 2)})
    with pytest.raises(ValueError, match="only the weights has scale"):
        load_weights(model, {**before, "scale": torch.zeros(1)})
    assert_same_weights(view_weights(model), before)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_folding_one_by_one_gives_the_mean(numbers: list[float]) -> None:
    mean = accumulator({"w": torch.tensor(0.0, dtype=torch.float64)})
    for count, number in enumerate(numbers):
        average_into(mean, {"w": torch.tensor(number, dtype=torch.float64)}, count)
    assert mean["w"].item() == pytest.approx(math.fsum(numbers) / len(numbers), abs=1e-12)


def test_integer_boolean_and_named_tensors_take_the_new_value() -> None:
    mean = accumulator({"n": torch.tensor(1), "b": torch.tensor(False), "u": torch.tensor(1.0)})
    new = {"n": torch.tensor(4), "b": torch.tensor(True), "u": torch.tensor(3.0)}
    average_into(mean, new, 1, copied=["u"])
    assert [mean["n"].item(), mean["b"].item(), mean["u"].item()] == [4, True, 3.0]


def test_bf16_is_averaged_in_float32() -> None:
    # 1 and 1 + 1/128 are neighbors in bf16: their mean exists only in a wider type.
    low, high = torch.tensor(1.0).bfloat16(), torch.tensor(1 + 1 / 128).bfloat16()
    mean = accumulator({"w": low})
    average_into(mean, {"w": high}, 1)
    assert mean["w"].dtype == torch.float32
    assert mean["w"].item() == 1 + 1 / 256


def test_interpolation_has_exact_ends_and_the_right_middle() -> None:
    start = {"w": torch.tensor([0.1, 0.2]), "n": torch.tensor(1)}
    end = {"w": torch.tensor([0.3, 0.7]), "n": torch.tensor(9)}
    assert_same_weights(interpolate(start, end, 0), start)
    assert_same_weights(interpolate(start, end, 1), end)
    quarter = interpolate(start, end, 0.25)
    torch.testing.assert_close(quarter["w"], torch.tensor([0.15, 0.325]))
    assert quarter["n"].item() == 1


def test_distance_is_euclidean_over_all_floating_point_tensors() -> None:
    start = {"a": torch.zeros(2), "b": torch.zeros(1).bfloat16(), "n": torch.tensor(0)}
    end = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([2.0]).bfloat16(), "n": torch.tensor(50)}
    assert distance(start, end) == 3.0


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


def test_bytes_are_counted_by_type() -> None:
    assert count_bytes({"a": torch.zeros(3), "b": torch.zeros(2).bfloat16(), "n": torch.tensor(1)}) == 24
