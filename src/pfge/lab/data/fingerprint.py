"""What tells data apart from other data, cheap to compute, so that a run can tell if its data has changed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Fingerprint:
    """A part of the data in a few words.

    Attributes:
        unit: What it has, such as "images".
        count: How many.
        targets: A digest of their targets and of the classes, in order; "" if that is not known.
        content: A digest of what they are, in order; "" if that is not known.
    """

    unit: str
    count: int
    targets: str = ""
    content: str = ""

    def difference(self, now: "Fingerprint") -> str | None:
        """Return how a part that had this fingerprint differs now; None if it does not."""
        if self.unit != now.unit:
            return f"{self.count:,} {self.unit} then, {now.count:,} {now.unit} now"
        if self.count != now.count:
            return f"{self.count:,} {self.unit} then, {now.count:,} now"
        if self.targets != now.targets and self.targets and now.targets:
            return f"the same number of {self.unit}, with other targets or in another order"
        if self.content != now.content and self.content and now.content:
            return f"the same number of {self.unit}, which are others or in another order"
        return None


def digest(*values: Any) -> str:
    """Return a digest of tensors, arrays, numbers and texts, in tuples, lists and dicts of any depth."""
    hashed = blake2b(digest_size=16)
    for part in _bytes_of(values):
        hashed.update(part)
    return hashed.hexdigest()


def _bytes_of(value: Any) -> Iterable[Any]:
    match value:
        case Tensor():
            array = value.detach().cpu().contiguous()
            yield f"{array.dtype} {list(array.shape)}".encode()
            yield array.flatten().view(torch.uint8).numpy().data
        case np.ndarray():
            yield f"{value.dtype} {list(value.shape)}".encode()
            yield np.ascontiguousarray(value).tobytes()
        case Mapping():
            for name, item in value.items():
                yield from _bytes_of(name)
                yield from _bytes_of(item)
        case tuple() | list():
            yield f"{len(value)} of".encode()
            for item in value:
                yield from _bytes_of(item)
        case bytes():
            yield value
        case str() | int() | float() | None:
            yield f"{value!r};".encode()
        case _:
            yield type(value).__name__.encode()  # the text of an object may have its address
