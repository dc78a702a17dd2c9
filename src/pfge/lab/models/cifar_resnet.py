"""The first residual networks for CIFAR (He et al., 2016, "Deep Residual Learning", section 4.2)."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def shortcut(x: Tensor, channels: int, stride: int) -> Tensor:
    """Return the input in the block's output shape, without parameters (the paper's option A).

    The zero channels go to both sides in equal number, as published checkpoints expect.
    """
    missing = channels - x.shape[1]
    if stride == 1 and missing == 0:
        return x
    return F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, missing // 2, missing - missing // 2))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm, added to a shortcut without parameters."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.width = width
        self.stride = stride
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's features."""
        residual = F.relu(self.bn1(self.conv1(x)))
        residual = self.bn2(self.conv2(residual))
        return F.relu(residual + shortcut(x, self.width, self.stride))


class CifarResNet(nn.Module):
    """Three stages of basic blocks, 6 * blocks + 2 layers deep.

    The attribute names are those of the published checkpoints, so their state dicts load.
    """

    def __init__(self, blocks: int, classes: int, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        features = F.relu(self.bn1(self.conv1(images)))
        features = self.layer3(self.layer2(self.layer1(features)))
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(features, 1).flatten(1))
        return logits


def _stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    rest = (BasicBlock(width, width, 1) for _ in range(blocks - 1))
    return nn.Sequential(BasicBlock(inputs, width, stride), *rest)
