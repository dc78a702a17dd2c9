from typing import Any

import pytest
import torch
from torch import nn

from pfge import load_weights
from pfge.weights import (
    copy_weights,
    count_bytes,
    distance,
    interpolate,
    require_same_layout,
    state_dict_for,
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


def test_three_differences_of_each_kind_are_named() -> None:
    model = {f"m{number}": torch.zeros(1) for number in range(5)} | {"shape": torch.zeros(2)}
    weights = {f"w{number}": torch.zeros(1) for number in range(4)} | {"shape": torch.zeros(3)}
    with pytest.raises(ValueError, match="must have the same tensors") as caught:
        require_same_layout(model, weights, "the model", "the file")
    assert str(caught.value) == (
        "the model and the file must have the same tensors: only the model has m0; only the model has m1; "
        "only the model has m2; only the file has w0; only the file has w1; only the file has w2; shape is "
        "[2] in the model and [3] in the file; and 3 more; use weights of the same architecture"
    )


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


def test_bytes_are_counted_by_type() -> None:
    assert count_bytes({"a": torch.zeros(3), "b": torch.zeros(2).bfloat16(), "n": torch.tensor(1)}) == 24


class Elsewhere(torch.Tensor):
    """A tensor that says it is on another device, and cannot be computed with those that are not."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone(memory_format=memory_format)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(type(value) is torch.Tensor for value in args):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices"
            )
        return super().__torch_function__(func, types, args, kwargs or {})


def test_the_distance_between_devices_is_that_on_one_device() -> None:
    here = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.5])}
    there = {"w": torch.tensor([4.0, 6.0]).as_subclass(Elsewhere), "b": torch.tensor([12.5])}
    assert distance(here, there) == distance(there, here) == 13.0
    assert distance(there, there) == 0.0


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_the_distance_of_weights_in_eight_bits_is_that_of_their_values(dtype: torch.dtype) -> None:
    start, end = ({"w": torch.tensor(w).to(dtype)} for w in ([0.0, 1.0], [3.0, 5.0]))
    assert distance(start, end) == 5.0


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def test_a_member_with_tied_weights_is_loaded_by_the_models_own_load_state_dict() -> None:
    member = copy_weights(view_weights(Tied()))
    model = Tied()
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(member)
    model.load_state_dict(state_dict_for(model, member))
    assert_same_weights(view_weights(model), member)
    assert model.head.weight is model.embed.weight
    assert state_dict_for(torch.compile(model), member).keys() == Tied().state_dict().keys()


def test_a_state_dict_is_made_of_weights_that_fit_the_model_only() -> None:
    with pytest.raises(ValueError, match=r"only the model has norm\.bias"):
        state_dict_for(Tied(), {"embed.weight": torch.zeros(5, 3)})
