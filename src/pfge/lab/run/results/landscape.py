"""What `pfge landscape` finds: a quantity on the plane through three members."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pfge.lab.run.results.base import Count, Finite, Place, Quantity, Result
from pfge.lab.run.typed_json import ResultError

SMALLEST_SPAN = 1e-9
"""Of the axes of a plane: a smaller one cannot be drawn."""


@dataclass(frozen=True, kw_only=True)
class Landscape(Result):
    """A quantity on a grid over the plane through three members, and the places of others on that plane.

    Attributes:
        seed: Of the run.
        members: The numbers of the three, from 1.
        quantity: What was measured.
        images: On how many images.
        x: Coordinates of the grid's columns, growing.
        y: Coordinates of its rows, growing.
        values: A row of the grid for each y, an entry for each x.
        w0: The place of the start weights.
        pfge: Those of PFGE's members.
        means: Those of the methods that average the trajectory, by name.
        trajectory: Points of the trajectory, if the run has them.
        curves: Places along each curve that was fitted between adjacent members.
    """

    seed: int
    members: tuple[Count, Count, Count]
    quantity: Quantity
    images: Count
    x: Sequence[Finite]
    y: Sequence[Finite]
    values: Sequence[Sequence[Finite]]
    w0: Place
    pfge: Sequence[Place]
    means: Mapping[str, Place]
    trajectory: Sequence[Place] | None = None
    curves: Sequence[Sequence[Place]]

    def __post_init__(self) -> None:
        for name, axis in (("x", self.x), ("y", self.y)):
            if len(axis) < 2 or not axis[-1] - axis[0] > SMALLEST_SPAN:
                raise ResultError(f"`{name}` must be two or more growing numbers, got {list(axis)[:3]}")
        if len(self.values) != len(self.y) or any(len(row) != len(self.x) for row in self.values):
            raise ResultError(f"`values` must have {len(self.y)} rows of {len(self.x)} numbers")
