"""The global random numbers of Python, numpy and torch, which the items of a Dataset may draw from."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_WORD = 2**32


def seed_globals(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch's CPU, so that they depend on the seed alone."""
    random.seed(seed)
    np.random.seed([seed // _WORD % _WORD, seed % _WORD])
    torch.default_generator.manual_seed(seed)


@contextmanager
def globals_kept() -> Iterator[None]:
    """Let the global generators continue afterwards as if nothing had been drawn from them."""
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(tensors)
