"""The forms that compression is compared with are what their names say."""

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from benchmarks.integers import round_by_inputs, round_to_nearest
from pfge import Ensemble
from pfge.packed import PackedMembers
from tests.toys import assert_same_weights


def make_linear() -> nn.Module:
    return nn.Linear(16, 8, bias=False)


def make_convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(16, 3)
    )


def ensemble_of(build: Callable[[], nn.Module]) -> Ensemble:
    torch.manual_seed(0)
    return Ensemble([dict(build().state_dict()) for _ in range(2)], build)


def error(ensemble: Ensemble, rounded: Ensemble, inputs: Tensor) -> float:
    """Return the squared error of the outputs of a linear layer."""
    pairs = zip(ensemble.members, rounded.members, strict=True)
    return sum(float((inputs @ (one["weight"] - two["weight"]).T).square().sum()) for one, two in pairs)


def test_inputs_that_do_not_depend_on_each_other_change_nothing() -> None:
    ensemble = ensemble_of(make_linear)
    nearest, by_inputs = round_to_nearest(ensemble, 3), round_by_inputs(ensemble, 3, 5 * torch.eye(16))
    for one, two in zip(nearest.members, by_inputs.members, strict=True):
        assert_same_weights(one, two)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_outputs_for_inputs_that_are_alike_are_nearer(bits: int) -> None:
    ensemble = ensemble_of(make_linear)
    g = torch.Generator().manual_seed(1)
    inputs = torch.randn(200, 4, generator=g) @ torch.randn(4, 16, generator=g)
    nearest, by_inputs = round_to_nearest(ensemble, bits), round_by_inputs(ensemble, bits, inputs)
    assert error(ensemble, by_inputs, inputs) < 0.5 * error(ensemble, nearest, inputs)
    assert by_inputs.nbytes == nearest.nbytes


def test_all_weights_are_rounded_and_nothing_is_shared() -> None:
    ensemble = ensemble_of(make_convolutions)
    x = torch.randn(10, 2, 8, 8, generator=torch.Generator().manual_seed(2))
    for rounded in (round_to_nearest(ensemble, 4), round_by_inputs(ensemble, 4, x)):
        tensors = cast("PackedMembers", rounded.members).tensors
        assert {name for name, tensor in tensors.items() if tensor.is_quantized} == {
            "0.weight",
            "2.weight",
            "4.weight",
        }
        assert all(tensor.base is None for tensor in tensors.values())
        torch.testing.assert_close(rounded.predict(x), ensemble.predict(x), rtol=0, atol=0.05)
