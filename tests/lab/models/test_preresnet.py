import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from pfge.lab.models.networks import Bottleneck, PreResNet


def make_block(inputs: int, width: int, stride: int) -> Bottleneck:
    torch.manual_seed(0)
    block = Bottleneck(inputs, width, stride)
    for layer in block.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 2)
            nn.init.normal_(layer.bias)
    return block


def activate(x: Tensor, bn: nn.BatchNorm2d) -> Tensor:
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = x.var((0, 2, 3), unbiased=False, keepdim=True)
    scaled = (x - mean) / (variance + 1e-5).sqrt()
    return (scaled * bn.weight[:, None, None] + bn.bias[:, None, None]).clamp(min=0)


def test_164_layers_have_the_parameters_of_the_paper() -> None:
    with torch.device("meta"):
        model = PreResNet(blocks=18, classes=10)
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_703_258


def test_20_layers_have_20_convolutions_and_linear_layers_besides_the_projections() -> None:
    with torch.device("meta"):
        model = PreResNet(blocks=2, classes=10)
    layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert sum(not name.endswith("shortcut") for name in layers) == 20
    assert [name for name in layers if name.endswith("shortcut")] == [
        "layer1.0.shortcut",
        "layer2.0.shortcut",
        "layer3.0.shortcut",
    ]


def test_maps_images_of_any_channels_to_logits() -> None:
    model = PreResNet(blocks=1, classes=7, channels=1)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 7)


@pytest.mark.parametrize("stride", [1, 2])
def test_every_convolution_follows_batch_norm_and_relu_and_the_shortcut_takes_the_raw_input(
    stride: int,
) -> None:
    block = make_block(inputs=6, width=2, stride=stride)
    x = torch.randn(4, 6, 8, 8)
    hidden = F.conv2d(activate(x, block.bn1), block.conv1.weight)
    hidden = F.conv2d(activate(hidden, block.bn2), block.conv2.weight, stride=stride, padding=1)
    hidden = F.conv2d(activate(hidden, block.bn3), block.conv3.weight)
    projection = block.state_dict()["shortcut.weight"]
    expected = hidden + F.conv2d(x, projection, stride=stride)
    torch.testing.assert_close(block(x), expected)


def test_a_block_of_unchanged_shape_passes_its_input_on() -> None:
    block = make_block(inputs=8, width=2, stride=1)
    nn.init.zeros_(block.conv3.weight)
    x = torch.randn(2, 8, 4, 4)
    assert torch.equal(block(x), x)


def test_the_last_features_are_normalized_and_rectified_before_the_average() -> None:
    torch.manual_seed(0)
    model = PreResNet(blocks=1, classes=3)
    seen: list[Tensor] = []
    model.layer3.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    logits = model(torch.randn(4, 3, 8, 8))
    averages = activate(seen[0], model.bn).mean((2, 3))
    torch.testing.assert_close(logits, averages @ model.fc.weight.T + model.fc.bias)
