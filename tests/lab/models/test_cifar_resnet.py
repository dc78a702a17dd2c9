import pytest
import torch
from torch import nn

from pfge.lab.models.networks import BasicBlock, CifarResNet, shortcut


@pytest.mark.parametrize(("blocks", "parameters"), [(3, 269_722), (5, 464_154), (7, 658_586), (9, 853_018)])
def test_20_32_44_and_56_layers_have_the_parameters_of_the_published_networks(
    blocks: int, parameters: int
) -> None:
    with torch.device("meta"):
        model = CifarResNet(blocks, classes=10)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_the_names_are_those_of_published_checkpoints() -> None:
    norm = ("weight", "bias", "running_mean", "running_var")
    expected = {"conv1.weight", "linear.weight", "linear.bias"} | {f"bn1.{tensor}" for tensor in norm}
    for stage in (1, 2, 3):
        for block in (0, 1, 2):
            prefix = f"layer{stage}.{block}"
            expected |= {f"{prefix}.conv1.weight", f"{prefix}.conv2.weight"}
            expected |= {f"{prefix}.{bn}.{tensor}" for bn in ("bn1", "bn2") for tensor in norm}
    with torch.device("meta"):
        names = set(CifarResNet(blocks=3, classes=10).state_dict())
    assert {name for name in names if not name.endswith("num_batches_tracked")} == expected


def test_maps_images_of_any_channels_to_logits() -> None:
    model = CifarResNet(blocks=1, classes=7, channels=1)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 7)


def test_the_shortcut_keeps_every_other_pixel_between_equally_many_zero_channels() -> None:
    x = torch.randn(2, 4, 6, 6)
    expected = torch.zeros(2, 8, 3, 3)
    for channel in range(4):
        for row in range(3):
            for column in range(3):
                expected[:, 2 + channel, row, column] = x[:, channel, 2 * row, 2 * column]
    assert torch.equal(shortcut(x, channels=8, stride=2), expected)


def test_the_shortcut_of_an_unchanged_shape_is_the_input_itself() -> None:
    x = torch.randn(1, 4, 3, 3)
    assert shortcut(x, channels=4, stride=1) is x


def test_the_shortcut_stays_channels_last() -> None:
    x = torch.randn(2, 16, 8, 8).to(memory_format=torch.channels_last)
    assert shortcut(x, channels=32, stride=2).is_contiguous(memory_format=torch.channels_last)


def test_the_sum_of_a_block_is_rectified() -> None:
    block = BasicBlock(4, 8, stride=2)
    nn.init.zeros_(block.bn2.weight)
    x = torch.randn(2, 4, 6, 6)
    expected = torch.zeros(2, 8, 3, 3)
    expected[:, 2:6] = x[:, :, ::2, ::2].clamp(min=0)
    assert torch.equal(block(x), expected)
