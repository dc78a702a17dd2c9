"""What all data has in common: errors, random streams, normalization and fingerprints."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfge.errors import InvalidValueError


@dataclass(frozen=True)
class Fingerprint:
    """Digest of one split of the data.

    Attributes:
        unit: Kind of the items, such as "images".
        count: Number of items.
        targets: Digest of the targets and of the classes, in order; "" if unknown.
        content: Digest of the items, in order; "" if unknown.
    """

    unit: str
    count: int
    targets: str = ""
    content: str = ""

    def difference(self, now: "Fingerprint") -> str | None:
        """Return how the data has changed since it had this fingerprint; None if it has not."""
        if self.unit != now.unit:
            return f"{self.count:,} {self.unit} then, {now.count:,} {now.unit} now"
        if self.count != now.count:
            return f"{self.count:,} {self.unit} then, {now.count:,} now"
        if self.targets != now.targets and self.targets and now.targets:
            return f"the same number of {self.unit}, with other targets or in another order"
        if self.content != now.content and self.content and now.content:
            return f"the same number of {self.unit}, but different ones or in another order"
        return None


def digest(*values: Any) -> str:
    """Return a digest of tensors, arrays, numbers and strings, in tuples, lists and dicts of any depth."""
    hashed = blake2b(digest_size=16)
    for part in _bytes_of(values):
        hashed.update(part)
    return hashed.hexdigest()


def _bytes_of(value: Any) -> Iterable[Any]:
    match value:
        case Tensor():
            array = value.detach().cpu().contiguous()
            yield f"{array.dtype} {list(array.shape)}".encode()
            yield array.flatten().view(torch.uint8).numpy().data
        case np.ndarray():
            yield f"{value.dtype} {list(value.shape)}".encode()
            yield np.ascontiguousarray(value).tobytes()
        case Mapping():
            for name, item in value.items():
                yield from _bytes_of(name)
                yield from _bytes_of(item)
        case tuple() | list():
            yield f"{len(value)} of".encode()
            for item in value:
                yield from _bytes_of(item)
        case bytes():
            yield value
        case str() | int() | float() | None:
            yield f"{value!r};".encode()
        case _:
            yield type(value).__name__.encode()  # repr() of an object may have its address


def derive_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Return a seed that depends on the arguments alone.

    They are hashed because torch keeps only 32 bits of a seed: sums such as `seed + epoch` would give
    different seeds the same epochs.
    """
    name = "/".join([purpose, str(seed), *map(str, numbers)])
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def generator(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """Return a fresh CPU generator that depends on the arguments alone."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *numbers))


def seed_torch(seed: int) -> None:
    """Seed torch's default generators, as `torch.manual_seed` does.

    Without an accelerator there is one of them. `torch.manual_seed` takes a hundred times as long there: it
    notes the call stack for each kind of device that may come to be used.
    """
    if _has_accelerator():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


class DataError(InvalidValueError):
    """Data that is missing, damaged or of the wrong kind; the message names the remedy."""


class DataWarning(UserWarning):
    """Some of the data cannot be used."""


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
