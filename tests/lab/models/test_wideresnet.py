import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from pfge.lab.models.networks import WideBlock, WideResNet


def test_28_layers_ten_times_as_wide_have_the_parameters_of_the_paper() -> None:
    with torch.device("meta"):
        model = WideResNet(blocks=4, widening=10, classes=10)
    assert sum(parameter.numel() for parameter in model.parameters()) == 36_489_290


def test_maps_images_of_any_channels_to_logits() -> None:
    model = WideResNet(blocks=1, widening=1, classes=7, channels=1)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 7)


def test_stages_halve_the_image_twice_and_are_widened() -> None:
    with torch.device("meta"):
        model = WideResNet(blocks=1, widening=3, classes=10)
        first = model.layer1(torch.empty(1, 16, 32, 32))
        second = model.layer2(first)
        assert first.shape == (1, 48, 32, 32)
        assert second.shape == (1, 96, 16, 16)
        assert model.layer3(second).shape == (1, 192, 8, 8)


@pytest.mark.parametrize("stride", [1, 2])
def test_every_convolution_follows_batch_norm_and_relu_and_the_shortcut_takes_the_raw_input(
    stride: int,
) -> None:
    torch.manual_seed(0)
    block = WideBlock(3, 5, stride, dropout=0.0).eval()
    # Statistics of zero and one leave BatchNorm a division by sqrt(1 + 1e-5).
    x = torch.randn(2, 3, 8, 8)
    shrink = (1 + 1e-5) ** -0.5
    hidden = F.conv2d((x * shrink).clamp(min=0), block.conv1.weight, block.conv1.bias, stride, padding=1)
    hidden = F.conv2d((hidden * shrink).clamp(min=0), block.conv2.weight, block.conv2.bias, padding=1)
    state = block.state_dict()
    expected = hidden + F.conv2d(x, state["shortcut.weight"], state["shortcut.bias"], stride)
    torch.testing.assert_close(block(x), expected)


def test_dropout_lies_between_the_convolutions() -> None:
    block = WideBlock(4, 4, 1, dropout=1.0)
    x = torch.randn(2, 4, 4, 4)
    # With everything dropped, the second convolution sees BatchNorm's shift, 0, and adds only its bias.
    expected = x + block.state_dict()["conv2.bias"][:, None, None]
    torch.testing.assert_close(block(x), expected)


def test_every_block_has_the_same_dropout() -> None:
    model = WideResNet(blocks=2, widening=1, classes=10, dropout=0.3)
    rates = {name: layer.p for name, layer in model.named_modules() if isinstance(layer, nn.Dropout)}
    assert rates == {f"layer{stage}.{block}.dropout": 0.3 for stage in (1, 2, 3) for block in (0, 1)}
