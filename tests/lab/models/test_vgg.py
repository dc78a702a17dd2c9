import math

import torch
from torch import nn

from pfge.lab.models.networks import VGG16


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_has_the_parameters_of_the_paper() -> None:
    with torch.device("meta"):
        assert count_parameters(VGG16(classes=10)) == 15_245_130


def test_a_channel_less_costs_its_filters_in_the_first_convolution() -> None:
    with torch.device("meta"):
        assert count_parameters(VGG16(classes=10, channels=2)) == 15_245_130 - 64 * 3 * 3


def test_maps_images_of_32_and_of_64_pixels_to_logits() -> None:
    model = VGG16(classes=100).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 100)
        assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 100)


def test_has_thirteen_convolutions_no_batch_norm_and_dropout_before_two_of_three_linear_layers() -> None:
    with torch.device("meta"):
        model = VGG16(classes=10)
    kinds = [type(layer) for layer in model.modules()]
    assert kinds.count(nn.Conv2d) == 13
    assert kinds.count(nn.MaxPool2d) == 5
    assert nn.BatchNorm2d not in kinds
    head = [type(layer) for layer in model.classifier]
    assert head == [nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear, nn.ReLU, nn.Linear]


def test_convolutions_start_with_variance_two_over_the_fan_out_and_no_bias() -> None:
    torch.manual_seed(0)
    last = [layer for layer in VGG16(classes=10).features if isinstance(layer, nn.Conv2d)][-1]
    # 512 * 512 * 9 draws: the relative error of their deviation is about 1 / sqrt(2 * 2.4e6) = 5e-4.
    assert math.isclose(last.weight.std().item(), math.sqrt(2 / (3 * 3 * 512)), rel_tol=3e-3)
    assert last.bias is not None
    assert not last.bias.any()


def test_every_layer_is_narrower_in_proportion_to_the_first() -> None:
    def widths(model: nn.Module) -> list[int]:
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
        return [layer.weight.shape[0] for layer in layers]

    with torch.device("meta"):
        *narrow, classes = widths(VGG16(classes=10, width=16))
        *wide, _ = widths(VGG16(classes=10))
    assert [4 * width for width in narrow] == wide
    assert classes == 10


def test_the_head_drops_half_of_its_values_unless_told_otherwise() -> None:
    def shares(model: VGG16) -> list[float]:
        return [layer.p for layer in model.classifier if isinstance(layer, nn.Dropout)]

    with torch.device("meta"):
        assert shares(VGG16(classes=10)) == [0.5, 0.5]
        assert shares(VGG16(classes=10, dropout=0.1)) == [0.1, 0.1]
