"""VGG16 for 32x32 images (Simonyan and Zisserman, 2015, configuration D), without BatchNorm."""

from torch import Tensor, nn

# The widths of the 3x3 convolutions of each stage, in multiples of the first; a stage ends in a max pooling.
STAGES = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))


class VGG16(nn.Module):
    """Thirteen convolutions and a three-layer head with dropout.

    The global average before the head leaves the single pixel of a 32x32 image as it is and lets larger
    images in.

    Args:
        classes: How many classes to tell apart.
        channels: How many channels an image has.
        width: Filters of the first convolution, and in proportion of all others; the paper's has 64.
        dropout: The share of values that the head leaves out in training.
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
