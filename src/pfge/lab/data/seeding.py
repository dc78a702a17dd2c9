"""Random streams that are named, so that none depends on what was drawn before."""

from functools import cache
from hashlib import blake2b

import torch


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
