"""Reading a `DataLoader` that somebody else reads too, without changing what they get."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from torch.utils.data import DataLoader


@contextmanager
def read_aside(inputs: Iterable[Any]) -> Iterator[None]:
    """Let inputs be read in the context as if they were not, for a training loop that reads them as well."""
    with _keep_order(inputs), _beside_other_readers(inputs):
        yield


@contextmanager
def _keep_order(inputs: Iterable[Any]) -> Iterator[None]:
    """Let a `DataLoader` with a generator of its own shuffle its next epochs as if it had not been read."""
    held = (
        (inputs.generator, getattr(inputs.sampler, "generator", None))
        if isinstance(inputs, DataLoader)
        else ()
    )
    states = [(generator, generator.get_state()) for generator in held if generator is not None]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


@contextmanager
def _beside_other_readers(inputs: Iterable[Any]) -> Iterator[None]:
    """Give a `DataLoader` other workers for a while if its persistent ones may be in the midst of an epoch.

    Such a loader has a single iterator. Reading it here would start it again, and the epoch of a training
    loop that is reading it would end with this pass.
    """
    iterator = vars(inputs).get("_iterator") if isinstance(inputs, DataLoader) else None
    # Empty after the last batch. A loop that was left early has some as well, and costs the start of workers.
    if iterator is None or not getattr(iterator, "_task_info", True):
        yield
        return
    loader = cast(DataLoader[Any], inputs)
    loader._iterator = None
    try:
        yield
    finally:
        loader._iterator = iterator  # the other one ends its workers when it is forgotten
