import pytest
import torch

from pfge.lab.models.networks import small_conv


def test_has_24058_parameters_for_digits() -> None:
    model = small_conv(classes=10, channels=1)
    # Convolutions 9 * (1*16 + 16*32 + 32*64), BatchNorm 2 * (16 + 32 + 64), head 64 * 10 + 10.
    assert sum(parameter.numel() for parameter in model.parameters()) == 23_184 + 224 + 650


@pytest.mark.parametrize("size", [8, 9, 28, 32])
def test_maps_images_of_at_least_eight_pixels_to_logits(size: int) -> None:
    assert small_conv(classes=10, channels=1)(torch.zeros(2, 1, size, size)).shape == (2, 10)
