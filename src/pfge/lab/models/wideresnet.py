"""Wide residual networks for small images (Zagoruyko and Komodakis, 2016)."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class WideBlock(nn.Module):
    """Twice BatchNorm, ReLU, 3x3 convolution, with dropout between, added to the untouched input."""

    def __init__(self, inputs: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1)
        self.dropout = nn.Dropout(dropout)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != width:
            self.shortcut = nn.Conv2d(inputs, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's features."""
        residual = self.dropout(self.conv1(F.relu(self.bn1(x))))
        residual = self.conv2(F.relu(self.bn2(residual)))
        total: Tensor = residual + self.shortcut(x)
        return total


class WideResNet(nn.Module):
    """Three stages of wide blocks, 6 * blocks + 4 layers deep.

    Every convolution has a bias: with it WideResNet-28-10 has the 36,489,290 parameters of the experiments
    this lab repeats.
    """

    def __init__(
        self, blocks: int, widening: int, classes: int, channels: int = 3, dropout: float = 0.0
    ) -> None:
        super().__init__()
        widths = [16 * widening, 32 * widening, 64 * widening]
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.layer1 = _stage(16, widths[0], blocks, 1, dropout)
        self.layer2 = _stage(widths[0], widths[1], blocks, 2, dropout)
        self.layer3 = _stage(widths[1], widths[2], blocks, 2, dropout)
        self.bn = nn.BatchNorm2d(widths[2])
        self.fc = nn.Linear(widths[2], classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d) and layer.bias is not None:
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        features = self.layer3(self.layer2(self.layer1(self.conv1(images))))
        features = F.relu(self.bn(features))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(features, 1).flatten(1))
        return logits


def _stage(inputs: int, width: int, blocks: int, stride: int, dropout: float) -> nn.Sequential:
    rest = (WideBlock(width, width, 1, dropout) for _ in range(blocks - 1))
    return nn.Sequential(WideBlock(inputs, width, stride, dropout), *rest)
