import pytest
import torch

from pfge.lab.models import build_model


def test_has_10922_parameters_for_mnist1d() -> None:
    model = build_model("conv1d", classes=10, channels=1)
    # Convolutions 5 * (1*32 + 32*32 + 32*32), BatchNorm 3 * 2 * 32, head 32 * 10 + 10.
    assert sum(parameter.numel() for parameter in model.parameters()) == 10_400 + 192 + 330


@pytest.mark.parametrize("length", [4, 40, 41])
def test_maps_signals_to_logits(length: int) -> None:
    assert build_model("conv1d", classes=3, channels=2)(torch.zeros(5, 2, length)).shape == (5, 3)
