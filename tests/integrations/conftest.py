import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def quick_collections() -> Iterator[None]:
    """The trainers collect garbage at each start, which takes long among all that they imported."""
    gc.freeze()
    yield
    gc.unfreeze()
