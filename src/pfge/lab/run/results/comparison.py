"""What `pfge compare` finds: a row for each ensemble, and where w0 is."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pfge.lab.run.results.base import (
    Count,
    FittedNumber,
    MeasuredRow,
    MemberMetrics,
    Metrics,
    Name,
    OfParts,
    StoredTask,
)
from pfge.lab.run.typed_json import ResultError, at_least
from pfge.methods import START, known_rows, starred
from pfge.tasks import Task
from pfge.tasks.manifest import DEFAULT_TASK


def expected_rows(methods: Iterable[str]) -> set[str]:
    """Return the rows of a finished comparison of these methods."""
    return {START, *methods, *(starred(name) for name in methods if starred(name) in known_rows())}


@dataclass(frozen=True)
class AtTemperature:
    """Metrics of pooled predictions with a temperature of the mean, fitted on validation data."""

    temperature: FittedNumber
    metrics: OfParts


@dataclass(frozen=True)
class AtMemberTemperatures:
    """Metrics of pooled predictions with a temperature for each member."""

    temperatures: Sequence[FittedNumber]
    metrics: OfParts


@dataclass(frozen=True, kw_only=True)
class ComparisonRow(MeasuredRow):
    """One ensemble of a comparison: its cost and its metrics.

    Attributes:
        seed: Of the run.
        method: The name of the row, such as `PFGE` or `FGE*`.
        task: What the metrics are of.
        members: How many the ensemble has.
        bytes: Of all their weights.
        bytes_of_one: Of the weights of one model.
        iterations: What it cost beyond w0.
        trainings: How many trainings from a start of their own it took.
        member_iterations: Where each member was taken; None for samples.
        metrics: Of the pooled predictions, for each part of the data.
        calibrated: The same at a temperature, if there is validation data.
        calibrated_members: The same with a temperature for each member.
        each: The metrics of each member alone, for each part of the data.
        growing: Those of the first 1, 2, ... members pooled.
    """

    remedy = "remove results.jsonl and run the same pfge compare, which only measures again"

    seed: int
    method: Name
    task: StoredTask = DEFAULT_TASK
    members: Count
    bytes: Count
    bytes_of_one: Count
    iterations: Annotated[int, at_least(0)]
    trainings: Count = 1
    member_iterations: Sequence[int | None] | None = None
    metrics: OfParts
    calibrated: AtTemperature | None = None
    calibrated_members: AtMemberTemperatures | None = None
    each: Mapping[str, Sequence[MemberMetrics]] | None = None
    growing: Mapping[str, Sequence[MemberMetrics]] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        of_members: dict[str, Sequence[Any] | None] = {"member_iterations": self.member_iterations}
        if self.calibrated_members:
            of_members["calibrated_members.temperatures"] = self.calibrated_members.temperatures
        for name, of_parts in (("each", self.each), ("growing", self.growing)):
            of_members |= {f"{name}.{part}": found for part, found in (of_parts or {}).items()}
        for name, entries in of_members.items():
            if entries is not None and len(entries) != self.members:
                raise ResultError(
                    f"`{name}` must have an entry for each of {self.members} members, got {len(entries)}"
                )

    @property
    def key(self) -> Hashable:
        """The seed and the method."""
        return self.seed, self.method

    def measured(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Yield the metrics on each part, at temperatures, and of members."""
        yield from self.metrics.items()
        for name, at in (("calibrated", self.calibrated), ("calibrated_members", self.calibrated_members)):
            for part, metrics in at.metrics.items() if at else ():
                yield f"{name}.{part}", metrics
        for name, of_parts in (("each", self.each), ("growing", self.growing)):
            for part, of_members in (of_parts or {}).items():
                for index, metrics in enumerate(of_members):
                    yield f"{name}.{part}[{index}]", metrics


@dataclass(frozen=True)
class StartWeights:
    """The file of a seed's start weights, and their metrics of a task on each part of the data."""

    seed: int
    file: Path
    metrics: Mapping[str, Metrics]
    task: Task = DEFAULT_TASK
