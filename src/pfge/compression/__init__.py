"""Ensembles in less memory: choose how many bits each tensor gets, and check what that costs."""

from pfge.compression.compressed import compress

__all__ = ["compress"]
