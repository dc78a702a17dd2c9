"""The architectures an experiment can name."""

from pfge.lab.models.registry import available, build_model

__all__ = ["available", "build_model"]
