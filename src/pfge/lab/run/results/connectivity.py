"""What `pfge connect` finds: a row for each curve between adjacent members."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from pfge.connectivity.tracing import CurveTrace
from pfge.lab.config.schema import ConnectSettings
from pfge.lab.run.results.base import Count, Name, ResultRow
from pfge.lab.run.typed_json import ResultError, require_finite, require_keys


@dataclass(frozen=True, kw_only=True)
class ConnectivityRow(ResultRow):
    """A curve between adjacent members: how it was fitted, and what lies along it.

    Attributes:
        seed: Of the run.
        method: Whose members.
        members: Their numbers, from 1.
        member_iterations: Where they were taken.
        settings: Of the fit and the trace.
        trace: Quantities at points of the curve.
    """

    remedy = "remove that line and run the same pfge connect, which fits its curve again"

    seed: int
    method: Name
    members: tuple[Count, Count]
    member_iterations: Sequence[int | None] | None = None
    settings: ConnectSettings
    trace: CurveTrace

    def __post_init__(self) -> None:
        points = len(self.trace.t)
        if points < 2:
            raise ResultError(f"`trace.t` must have at least 2 points, got {points}")
        require_keys("train_loss", "train_error", "test_error")(self.trace.values, "trace.values")
        columns = {f"trace.values.{name}": column for name, column in self.trace.values.items()}
        columns |= {"trace.squared_norms": self.trace.squared_norms, "trace.t": self.trace.t}
        for name, column in columns.items():
            if len(column) != points:
                raise ResultError(
                    f"`{name}` must have an entry for each of {points} points, got {len(column)}"
                )
            for value in column:
                require_finite(value, name)

    @property
    def key(self) -> Hashable:
        """The seed, the method and the two members."""
        return self.seed, self.method, self.members
