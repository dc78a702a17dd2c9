"""VGG16 for 32x32 images (Simonyan and Zisserman, 2015, configuration D), without BatchNorm."""

from torch import Tensor, nn

# The widths of the 3x3 convolutions, by stage; every stage ends in a 2x2 max pooling.
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(nn.Module):
    """Thirteen convolutions and a three-layer head with dropout.

    The global average before the head leaves the single pixel of a 32x32 image as it is and lets larger
    images in.
    """

    def __init__(self, classes: int, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for stage in STAGES:
            for width in stage:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(512, 512),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(512, 512),
            nn.ReLU(inplace=True),
            nn.Linear(512, classes),
        )
        for layer in layers:
            if isinstance(layer, nn.Conv2d) and layer.bias is not None:
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        logits: Tensor = self.classifier(self.features(images))
        return logits
