"""Averages of weights against closed forms and against averaging tensor by tensor."""

import math
from weakref import ref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pfge import load_weights
from pfge.averages import Move, average_into
from pfge.weights import Weights, accumulator, find_non_finite
from tests.toys import assert_same_weights


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


def test_a_move_can_be_made_again_after_the_values_have_changed() -> None:
    new = {"w": torch.tensor([4.0]), "n": torch.tensor(1), "b": torch.tensor([4.0]).bfloat16()}
    mean = accumulator({"w": torch.zeros(1), "n": torch.tensor(0), "b": torch.zeros(1).bfloat16()})
    move = Move(mean, new)
    move.make(0.5)
    for tensor in new.values():
        tensor.mul_(2)
    move.make(0.25)
    assert (mean["w"].item(), mean["n"].item(), mean["b"].item()) == (3.5, 2, 3.5)


def test_a_move_is_for_the_tensors_that_it_was_made_for() -> None:
    new = {"a": torch.zeros(1), "b": torch.zeros(1)}
    move = Move(accumulator(new), new)
    assert move.leads_to(dict(new))
    assert not move.leads_to({"a": new["a"]})
    assert not move.leads_to({"a": new["a"], "b": torch.zeros(1)})


def test_a_move_keeps_nothing_of_where_it_leads_in_memory() -> None:
    new = {"w": torch.ones(3), "b": torch.ones(3).bfloat16(), "n": torch.tensor(1)}
    mean = accumulator(new)
    move = Move(mean, new)
    alive = [ref(tensor) for tensor in new.values()]
    move.make(0.5)
    del new
    assert [tensor() for tensor in alive] == [None, None, None]
    assert not move.leads_to(mean)
    with pytest.raises(RuntimeError, match="were freed"):
        move.make(0.5)
