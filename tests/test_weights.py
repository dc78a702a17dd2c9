import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from pfge import load_weights
from pfge.weights import (
    LiveWeights,
    Weights,
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


def make_many_kinds(seed: int) -> Weights:
    """Tensors of many types, sizes and memory orders."""
    generator = torch.Generator().manual_seed(seed)
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64)
    shapes = ((), (0,), (1,), (3,), (65,), (5000,), (7, 5), (8, 3, 3, 3))
    weights = {
        f"{kind} {shape}": torch.randn(shape, generator=generator, dtype=torch.float64).to(kind)
        for kind in (*kinds, torch.bool)
        for shape in shapes
    }
    weights["transposed"] = torch.randn(6, 5, generator=generator).t()
    images = torch.randn(2, 3, 4, 4, generator=generator)
    return weights | {
        "channels last": images.to(memory_format=torch.channels_last),
        "copied": torch.randn(9, generator=generator),
        "copied bfloat16": torch.randn(9, generator=generator).bfloat16(),
    }


def test_averaging_together_is_averaging_one_by_one_bit_for_bit() -> None:
    copied = {"copied", "copied bfloat16"}
    mean, expected = accumulator(make_many_kinds(0)), accumulator(make_many_kinds(0))
    for count in range(1, 30):
        new = make_many_kinds(count)
        average_into(mean, new, count, copied)
        for name, tensor in new.items():
            if name in copied or not (tensor.is_floating_point() or tensor.is_complex()):
                expected[name].copy_(tensor)
            else:
                expected[name].lerp_(tensor.to(expected[name].dtype), 1 / (count + 1))
        assert_same_weights(mean, expected)


class Subclass(Tensor):
    """A tensor of a kind that torch's foreach functions may not know."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func in (torch._foreach_copy_, torch.cat):
            raise NotImplementedError
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensors_without_foreach_functions_are_averaged_checked_and_loaded() -> None:
    def make(value: float) -> Weights:
        return {"w": torch.full((2,), value).as_subclass(Subclass), "n": torch.tensor(int(value))}

    mean = accumulator(make(1.0))
    average_into(mean, make(4.0), 2, copied=["n"])
    assert (mean["w"].tolist(), mean["n"].item()) == ([2.0, 2.0], 4)
    assert find_non_finite(make(1.0)) is None
    model = nn.Linear(2, 1, bias=False)
    model.weight = nn.Parameter(torch.zeros(1, 2).as_subclass(Subclass), requires_grad=False)
    load_weights(model, {"weight": torch.tensor([[3.0, 4.0]])})
    assert model.weight.tolist() == [[3.0, 4.0]]


def replace_layer(model: nn.Module) -> None:
    model[0] = nn.Linear(4, 8)


def replace_parameter(model: nn.Module) -> None:
    model[4].weight = nn.Parameter(torch.ones(3, 8))


def replace_buffer(model: nn.Module) -> None:
    model[1].running_mean = torch.ones(8)


def tie(model: nn.Module) -> None:
    model[1].bias = model[0].bias


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.to(torch.float64),
        lambda model: model[0].weight.data.copy_(torch.ones(8, 4)),
        lambda model: setattr(model[0].weight, "data", torch.ones(8, 4)),
        lambda model: torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.ones(8, 4))),
        replace_layer,
        replace_parameter,
        replace_buffer,
        tie,
        lambda model: model.append(nn.Linear(3, 2)),
        lambda model: model.register_buffer("scale", torch.ones(1)),
        lambda model: model[2].register_parameter("slope", nn.Parameter(torch.ones(1))),
        lambda model: model[0].register_parameter("bias", None),
        lambda model: weight_norm(model[0]),
        lambda model: model.__setitem__(0, torch.compile(model[0])),
    ],
)
def test_live_weights_are_those_that_the_model_has_now(change: Callable[[nn.Module], object]) -> None:
    model = make_mlp()
    live = LiveWeights(model)
    live.view()
    change(model)
    assert_same_weights(live.view(), view_weights(model))
    live.view()["4.bias"].fill_(7.0)
    assert model[4].bias.tolist() == [7.0, 7.0, 7.0]


def test_live_weights_walk_the_modules_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_mlp()
    live = LiveWeights(model)
    monkeypatch.setattr(nn.Module, "named_modules", lambda *_: pytest.fail("walked again"))
    assert_same_weights(live.view(), dict(model.state_dict()))


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
