"""What a compressed ensemble must keep to: given widths, a number of bytes, or a loss of quality."""

from collections.abc import Mapping
from dataclasses import dataclass

from pfge.compression.quality import Quality
from pfge.ensemble import Ensemble


@dataclass(frozen=True)
class Bits:
    """Compress to widths that are given.

    Args:
        delta: Bits for each number that a member adds to the base, from 1 to 8; without a base, also 16
            (float16). A mapping gives the width of each tensor by its name.

    Example:
        >>> from pfge import Bits
        >>> Bits(3), Bits({"0.weight": 2, "3.weight": 4})
        (Bits(delta=3), Bits(delta={'0.weight': 2, '3.weight': 4}))
    """

    delta: int | Mapping[str, int] = 3


@dataclass(frozen=True)
class Budget:
    """Compress into a number of bytes; the widths, tensor by tensor, are those that use it best.

    Args:
        bytes: The most bytes for the tensors, in memory. Saved files add some 70 bytes a tensor, unless they
            are deflated, which takes about a tenth less.
        files: Whether the bytes are those of all saved files instead.

    Example:
        >>> import torch, pfge
        >>> members = [{"weight": torch.full((4, 64), 1 + k / 100)} for k in range(4)]
        >>> ensemble = pfge.Ensemble(members, lambda: torch.nn.Linear(64, 4, bias=False))
        >>> pfge.compress(ensemble, pfge.Budget(600)).nbytes  # these lie on a line: one component is enough
        280
    """

    bytes: int
    files: bool = False

    def size_of(self, ensemble: Ensemble) -> int:
        """Return the bytes of an ensemble that count."""
        return ensemble.file_bytes() if self.files else ensemble.nbytes

    def allows(self, ensemble: Ensemble) -> bool:
        """Return whether an ensemble takes no more bytes."""
        return self.size_of(ensemble) <= self.bytes


@dataclass(frozen=True, kw_only=True)
class MaxLoss:
    """Compress to the fewest bytes found that lose no more than this on validation data.

    Args:
        kl: The most that predictions may differ from the original's, by the task's divergence:
            KL(original || compressed) in nats, the mean over validation examples.
        nll_increase: The most that the negative log-likelihood of validation targets may increase.

    Example:
        >>> from pfge import MaxLoss
        >>> from pfge.compression import Quality
        >>> MaxLoss(kl=0.001).allows(Quality(kl=0.0005, nll_increase=None))
        True
    """

    kl: float | None = None
    nll_increase: float | None = None

    def __post_init__(self) -> None:
        if self.kl is None and self.nll_increase is None:
            raise ValueError("MaxLoss needs a loss, got none; give kl, nll_increase or both")
        for name, most in (("kl", self.kl), ("nll_increase", self.nll_increase)):
            if most is not None and not most > 0:
                raise ValueError(f"{name} must be above 0, got {most}")

    def allows(self, quality: Quality) -> bool:
        """Return whether a compressed ensemble has lost no more."""
        kl_is_fine = self.kl is None or quality.kl <= self.kl
        nll = quality.nll_increase
        return kl_is_fine and (self.nll_increase is None or nll is None or nll <= self.nll_increase)


Target = Bits | Budget | MaxLoss
