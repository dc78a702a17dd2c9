"""What all results share: types of values with their checks, and how a result becomes JSON."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pfge.lab.run.typed_json import (
    Flat,
    LaterVersionError,
    ResultError,
    StoredAs,
    at_least,
    decode,
    encode,
    require_finite,
    require_keys,
)
from pfge.tasks import Task
from pfge.tasks.manifest import task_from_manifest, task_to_manifest

VERSION = 1
"""Of the format of results. Results from before there were versions have no such key, and the same others."""


def _require_fitted(value: Any, at: str) -> None:
    for number in value if isinstance(value, list | tuple) else [value]:
        require_finite(decode(float, number, at), at)


def _require_name(value: str, at: str) -> None:
    """Refuse what would lead out of the run's folder, as files are named by it, or steer a terminal."""
    is_name = 0 < len(value) <= LONGEST_NAME and value.isprintable() and value not in (".", "..")
    if not is_name or {*value} & {"/", "\\"}:
        raise ResultError(
            f"`{at}` must be a name of 1 to {LONGEST_NAME} printable characters without slashes, got "
            f"{ascii(value)[:60]}"
        )


LONGEST_NAME = 100
Name = Annotated[str, _require_name]
"""Of a method or a storage format."""
Quantity = Literal["train_loss", "train_error", "test_error"]
"""What is measured on a plane, and at the least along a curve."""
Count = Annotated[int, at_least(1)]
Finite = Annotated[float, require_finite]
FittedNumber = Annotated[Any, _require_fitted]
"""A calibration: a number, or a list with one for each label."""
Place = tuple[Finite, Finite]
"""Coordinates on a plane."""
StoredTask = Annotated[Task, StoredAs(task_to_manifest, task_from_manifest)]
"""A task as a manifest has it; the default is left out."""
Metrics = Mapping[str, Finite]
"""Every metric by its name; the main ones that any scores of the result's task have are always there."""
MemberMetrics = Mapping[str, float]
"""The same of one member, which may have diverged: NaN and infinity are allowed."""
OfParts = Annotated[Mapping[str, Metrics], Flat(("test", "validation")), require_keys("test")]
"""The metrics on each part of the data; each part is a key of its own in JSON."""


class Result:
    """A value that is kept as JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the value for `json.dumps`, with the version of the format."""
        return {"version": VERSION, **encode(self)}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the value that JSON holds.

        Raises:
            ResultError: The JSON is not such a value, or of a later version.
        """
        version = value.get("version", VERSION) if isinstance(value, dict) else VERSION
        if decode(Count, version, "version") > VERSION:
            raise LaterVersionError(
                f"its format is version {version}, and this pfge reads up to {VERSION}; install a later pfge"
            )
        found: Self = decode(cls, value)
        return found


class ResultRow(Result, ABC):
    """A result that is one line of a file."""

    remedy: ClassVar[str]
    """How to get a line again that cannot be read."""

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """What no two lines of a file share."""


class MeasuredResult(Result, ABC):
    """A result with metrics, which are those of its task."""

    task: StoredTask

    @abstractmethod
    def measured(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Yield all metrics that the result has, each with its place in JSON."""

    def __post_init__(self) -> None:
        needed = [metric.name for metric in self.task.metrics if metric.is_main and metric.of is object]
        for at, metrics in self.measured():
            require_keys(*needed)(metrics, at if at.isprintable() else ascii(at))


class MeasuredRow(MeasuredResult, ResultRow, ABC):
    """A line of a file with metrics; all lines of a file are of one task."""
