"""Predictions of examples that no model was trained on."""

import torch
from torch import Tensor


def random_logits(seed: int = 0, examples: int = 300, classes: int = 5) -> tuple[Tensor, Tensor]:
    """Logits that are right more often than chance."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(examples, classes, generator=generator, dtype=torch.float64)
    targets = torch.randint(classes, (examples,), generator=generator)
    logits[torch.arange(examples), targets] += 2
    return logits, targets
