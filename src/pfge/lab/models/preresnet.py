"""Pre-activation ResNets for small images (He et al., 2016, "Identity Mappings")."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

EXPANSION = 4


class Bottleneck(nn.Module):
    """Three times BatchNorm, ReLU, convolution (1x1, 3x3, 1x1), added to the untouched input.

    Where the shape changes, the input passes a bare 1x1 convolution, so no activation lies on the sum's path.
    """

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's features."""
        residual = self.conv1(F.relu(self.bn1(x)))
        residual = self.conv2(F.relu(self.bn2(residual)))
        residual = self.conv3(F.relu(self.bn3(residual)))
        total: Tensor = residual + self.shortcut(x)
        return total


class PreResNet(nn.Module):
    """Three stages of bottlenecks, 9 * blocks + 2 layers deep."""

    def __init__(self, blocks: int, classes: int, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16 * EXPANSION, 32, blocks, stride=2)
        self.layer3 = _stage(32 * EXPANSION, 64, blocks, stride=2)
        self.bn = nn.BatchNorm2d(64 * EXPANSION)
        self.fc = nn.Linear(64 * EXPANSION, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        features = self.layer3(self.layer2(self.layer1(self.conv1(images))))
        features = F.relu(self.bn(features))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(features, 1).flatten(1))
        return logits


def _stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    rest = (Bottleneck(EXPANSION * width, width, 1) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(inputs, width, stride), *rest)
