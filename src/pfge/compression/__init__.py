"""Ensembles in less memory: choose how many bits each tensor gets, and check what that costs."""

from pfge.compression.compress import compress

__all__ = ["compress"]
