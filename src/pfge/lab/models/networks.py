"""The lab's own networks: residual ones and VGG16 for small images, small ones for tables and signals."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.dropout import _DropoutNd


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
        self.layer1 = _resnet_stage(16, 16, blocks, stride=1)
        self.layer2 = _resnet_stage(16, 32, blocks, stride=2)
        self.layer3 = _resnet_stage(32, 64, blocks, stride=2)
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


def _resnet_stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    rest = (BasicBlock(width, width, 1) for _ in range(blocks - 1))
    return nn.Sequential(BasicBlock(inputs, width, stride), *rest)


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
        self.layer1 = _preresnet_stage(16, 16, blocks, stride=1)
        self.layer2 = _preresnet_stage(16 * EXPANSION, 32, blocks, stride=2)
        self.layer3 = _preresnet_stage(32 * EXPANSION, 64, blocks, stride=2)
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


def _preresnet_stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    rest = (Bottleneck(EXPANSION * width, width, 1) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(inputs, width, stride), *rest)


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
        self.layer1 = _wide_stage(16, widths[0], blocks, 1, dropout)
        self.layer2 = _wide_stage(widths[0], widths[1], blocks, 2, dropout)
        self.layer3 = _wide_stage(widths[1], widths[2], blocks, 2, dropout)
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


def _wide_stage(inputs: int, width: int, blocks: int, stride: int, dropout: float) -> nn.Sequential:
    rest = (WideBlock(width, width, 1, dropout) for _ in range(blocks - 1))
    return nn.Sequential(WideBlock(inputs, width, stride, dropout), *rest)


# The widths of the 3x3 convolutions of each stage, in multiples of the first; a stage ends in a max pooling.
STAGES = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))


class VGG16(nn.Module):
    """Thirteen convolutions and a three-layer head with dropout.

    The global average before the head leaves the single pixel of a 32x32 image as it is and lets larger
    images in.

    Args:
        classes: Number of classes.
        channels: Number of channels of an image.
        width: Filters of the first convolution, and in proportion of all others; the paper's has 64.
        dropout: Probability with which the head drops a value in training.
    """

    def __init__(self, classes: int, channels: int = 3, *, width: int = 64, dropout: float = 0.5) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for stage in STAGES:
            for multiple in stage:
                layers += [nn.Conv2d(channels, multiple * width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = multiple * width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(channels, channels),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(channels, channels),
            nn.ReLU(inplace=True),
            nn.Linear(channels, classes),
        )
        for layer in layers:
            if isinstance(layer, nn.Conv2d) and layer.bias is not None:
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


def mlp(classes: int, channels: int, width: int = 64, dropout: float = 0.0) -> nn.Sequential:
    """Return two hidden layers and a linear one.

    Args:
        classes: Number of outputs.
        channels: Number of features.
        width: Units in a hidden layer.
        dropout: Probability with which a hidden unit is dropped in training.
    """
    return nn.Sequential(
        nn.Linear(channels, width),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(width, classes),
    )


def conv1d(classes: int, channels: int = 1, width: int = 32) -> nn.Sequential:
    """Return three convolutions with BatchNorm and a linear layer, for signals of at least 4 numbers.

    Args:
        classes: Number of outputs.
        channels: Number of channels of the signal.
        width: Channels of each convolution.
    """
    return nn.Sequential(
        *_block_1d(channels, width),
        nn.MaxPool1d(2),
        *_block_1d(width, width),
        nn.MaxPool1d(2),
        *_block_1d(width, width),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(width, classes),
    )


def _block_1d(inputs: int, width: int) -> tuple[nn.Module, ...]:
    # No bias, because BatchNorm has one.
    return nn.Conv1d(inputs, width, 5, padding=2, bias=False), nn.BatchNorm1d(width), nn.ReLU(inplace=True)


def small_conv(classes: int, channels: int = 3) -> nn.Sequential:
    """Return three convolutions with BatchNorm and a linear layer, for images of at least 8x8."""
    return nn.Sequential(
        *_block_2d(channels, 16),
        nn.MaxPool2d(2),
        *_block_2d(16, 32),
        nn.MaxPool2d(2),
        *_block_2d(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def _block_2d(inputs: int, width: int) -> tuple[nn.Module, ...]:
    # No bias, because BatchNorm has one.
    return nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)


def dropout_layers(model: nn.Module) -> list[_DropoutNd]:
    """Return the dropout layers of a model."""
    return [layer for layer in model.modules() if isinstance(layer, _DropoutNd)]


def has_dropout(model: nn.Module) -> bool:
    """Return whether a model has dropout with a probability above 0."""
    return any(layer.p > 0 for layer in dropout_layers(model))
