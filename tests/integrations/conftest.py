import gc
from collections.abc import Iterator

import pytest
from torch import distributed


@pytest.fixture(autouse=True, scope="session")
def quick_collections() -> Iterator[None]:
    """The trainers collect garbage at each start, which takes long among all that they imported."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def no_process_group() -> Iterator[None]:
    """End a process group that a training began."""
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()
