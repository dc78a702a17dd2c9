"""Ensembles in less memory: choose how many bits each tensor gets, and check what that costs."""

from pfge.compression.compressed import compress
from pfge.compression.quality import kl_divergence

__all__ = ["compress", "kl_divergence"]
