"""What is needed to use an ensemble, beside its task and its model: an entry of its manifest."""

from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

from pfge.storage.files import StorageError

LARGEST = 1 << 24
"""Of every size in a manifest, which may be a stranger's."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """How inputs are made and what outputs are called, so that the training data is not needed.

    Every part may be left out. None of it is executed, and nothing is imported because of it.

    Args:
        classes: The names of the classes or labels, in the order of the model's outputs.
        mean: Of each channel of pictures, whose pixels are scaled to 0..1; subtracted from them.
        std: Of each channel; what they are then divided by.
        input_shape: Of one example, such as [C, H, W], if the model takes one tensor of numbers.
        resize: The shorter side of a picture in pixels, before its middle is taken.
        outputs: The number of outputs that the model is built with.
        channels: The number of channels or features that the model is built with.

    Raises:
        ValueError: A part is of another kind, or mean and std are not of one length.

    Example:
        >>> from pfge.storage.usage import Usage
        >>> Usage(classes=("cat", "dog"), mean=(0.5,), std=(0.25,), input_shape=(1, 28, 28))
        Usage(classes=('cat', 'dog'), mean=(0.5,), std=(0.25,), input_shape=(1, 28, 28))
    """

    classes: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    input_shape: tuple[int, ...] | None = None
    resize: int | None = None
    outputs: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        if self.classes is not None and not all(isinstance(name, str) for name in self.classes):
            raise ValueError(f"classes must be texts, got {self.classes!r}")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is not None and not all(isinstance(v, float | int) and isfinite(v) for v in values):
                raise ValueError(f"{name} must be finite numbers, got {values!r}")
        if len(self.mean or ()) != len(self.std or ()):
            raise ValueError(f"mean and std must have as many numbers, got {self.mean!r} and {self.std!r}")
        if not all(value > 0 for value in self.std or ()):
            raise ValueError(f"std must be above 0, got {self.std!r}")
        for name in ("input_shape", "resize", "outputs", "channels"):
            value = getattr(self, name)
            sizes = value if isinstance(value, tuple) else () if value is None else (value,)
            if not all(type(size) is int and 0 < size <= LARGEST for size in sizes):
                raise ValueError(f"{name} must be above 0 and at most {LARGEST}, got {value!r}")

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.given().items())
        return f"Usage({given})"

    def given(self) -> dict[str, Any]:
        """Return the parts that are not left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_manifest(cls, path: Path, entry: Any) -> "Usage":
        """Return the usage of a manifest's entry; an empty one if there is none.

        Raises:
            StorageError: The entry is of another kind.
        """
        if entry is None:
            return cls()
        known = {field.name for field in fields(cls)}
        try:
            if not isinstance(entry, dict):
                raise TypeError(f"got {entry!r}")
            # What a later version adds is left out.
            return cls(**{n: _as_tuple(n, value) for n, value in entry.items() if n in known})
        except (TypeError, ValueError) as error:
            raise StorageError(f"{path} must say in `usage` how inputs are made: {error}") from None


NO_USAGE = Usage()


def _as_tuple(name: str, value: Any) -> Any:
    if name in ("classes", "mean", "std", "input_shape"):
        if not isinstance(value, list):
            raise ValueError(f"{name} must be a list, got {value!r}")
        return tuple(value)
    return value
