"""A labeled image set held whole in memory, and how its pixels become network inputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pfge.lab.data.fingerprint import Fingerprint, digest


class DataError(ValueError):
    """Data that is missing, damaged or of the wrong kind; the message names the remedy."""


class DataWarning(UserWarning):
    """Some of the data cannot be used."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images and their labels as two tensors on one device.

    Attributes:
        images: uint8 pixels, [N, C, H, W].
        labels: int64 class numbers, [N].
        class_names: What each class number stands for.
        files: A number for each image, int64 [N], that tells its file from others; None if the images are
            not from files of their own.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    files: Tensor | None = None

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise DataError(
                f"images must be uint8 [N, C, H, W], got {images.dtype} {list(images.shape)}; "
                "scale the pixels to 0..255 and convert them with .to(torch.uint8)"
            )
        if labels.dtype != torch.int64 or labels.ndim != 1:
            raise DataError(
                f"labels must be int64 [N], got {labels.dtype} {list(labels.shape)}; convert with .long()"
            )
        if len(images) != len(labels):
            raise DataError(
                f"every image needs one label, got {len(images)} images and {len(labels)} labels; "
                "check that both were read from the same files"
            )
        wrong = ((labels < 0) | (labels >= len(self.class_names))).nonzero()
        if len(wrong) > 0:
            first = int(wrong[0])
            raise DataError(
                f"labels must lie in 0..{len(self.class_names) - 1} for {len(self.class_names)} classes, "
                f"got {int(labels[first])} at image {first} ({len(wrong)} such); count classes from 0"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Tensor | Sequence[int]) -> "ImageSet":
        """Return the images at `indices`, in that order."""
        chosen = torch.as_tensor(indices, dtype=torch.int64, device=self.labels.device)
        files = None if self.files is None else self.files[chosen.cpu()]
        return ImageSet(self.images[chosen], self.labels[chosen], self.class_names, files)

    def to(self, device: torch.device | str) -> "ImageSet":
        """Return the set on `device`; nothing is copied if it is there already."""
        return ImageSet(self.images.to(device), self.labels.to(device), self.class_names, self.files)

    def fingerprint(self) -> Fingerprint:
        """Return what tells these images apart from others: their files, or else their pixels."""
        # Pixels of the same file may differ by a bit where another version decodes them.
        content = digest(list(self.images.shape[1:]), self.images if self.files is None else self.files)
        return Fingerprint("images", len(self), digest(self.labels, self.class_names), content)


@dataclass(frozen=True)
class Normalization:
    """The mean and standard deviation of each channel, for pixels scaled to 0..1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std):
            raise DataError(f"mean and std need one value per channel each, got {self.mean} and {self.std}")
        if min(self.std) <= 0:
            raise DataError(f"std must be positive, got {self.std}")
        if min(self.mean) < 0 or max(self.mean) > 1 or max(self.std) > 1:
            raise DataError(
                f"mean and std are of pixels from 0 to 1, got {self.mean} and {self.std}; divide them by 255"
            )

    @classmethod
    def measure(cls, images: Tensor) -> "Normalization":
        """Return the statistics of uint8 `images`, [N, C, H, W]; a constant channel gets std 1."""
        # A histogram is exact, and needs no floating-point copy of the set.
        values = torch.arange(256, dtype=torch.float64) / 255
        means, stds = [], []
        for channel in images.unbind(1):
            counts = torch.bincount(channel.flatten().cpu(), minlength=256).double()
            share = counts / counts.sum()
            mean = float(share @ values)
            means.append(mean)
            stds.append(float(share @ (values - mean) ** 2) ** 0.5 or 1.0)
        return cls(tuple(means), tuple(stds))

    def scale_and_shift(self) -> tuple[list[float], list[float]]:
        """Return the factor and the summand of each channel that normalize raw 0..255 pixels."""
        scale = [1 / (255 * std) for std in self.std]
        return scale, [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]

    def __call__(self, images: Tensor) -> Tensor:
        """Return uint8 `images`, [..., C, H, W], as normalized float32."""
        if images.shape[-3] != len(self.mean):
            raise DataError(f"normalization has {len(self.mean)} channels, the images {images.shape[-3]}")
        scale, shift = (
            torch.tensor(values, device=images.device)[:, None, None] for values in self.scale_and_shift()
        )
        return images.float().mul_(scale).add_(shift)


IMAGENET_NORMALIZATION = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
