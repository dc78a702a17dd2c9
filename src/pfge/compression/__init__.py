"""Ensembles in less memory: choose how many bits each tensor gets, and check what that costs."""

from pfge.compression.compress import Bits, Budget, MaxLoss, Quality, compress
from pfge.compression.distillation import Distillation, distil
from pfge.packed.encode import PackSettings

__all__ = [
    "Bits",
    "Budget",
    "Distillation",
    "MaxLoss",
    "PackSettings",
    "Quality",
    "compress",
    "distil",
]
