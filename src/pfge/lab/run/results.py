"""Results of experiments as frozen values, and their files of one JSON object per line."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from filelock import lock_descriptor

from pfge.connectivity.fitting import CurveTrace
from pfge.lab.config.settings import ConnectSettings
from pfge.lab.config.typed import (
    FieldError,
    Flat,
    StoredAs,
    at_least,
    decode,
    encode,
    require_finite,
    require_keys,
)
from pfge.methods import START, known_rows, starred
from pfge.storage.files import (
    LONGEST_FILE_NAME,
    BrokenSealError,
    StorageError,
    UnreadableFileError,
    content_digest,
    is_file_name,
    is_sealed,
    parse_json,
    read_bounded,
    read_json_object,
    regular_only,
    seal,
    unseal,
    write_json,
    write_text,
)
from pfge.tasks import DEFAULT_TASK, Task, task_from_manifest, task_to_manifest

VERSION = 1
"""Of the format of results. Results from before there were versions have no such key, and the same others."""


def _require_fitted(value: Any, at: str) -> None:
    for number in value if isinstance(value, list | tuple) else [value]:
        require_finite(decode(float, number, at), at)


def _require_name(value: str, at: str) -> None:
    """Refuse what would lead out of the run's folder, as files are named by it, or steer a terminal."""
    if len(value) > LONGEST_NAME or not is_file_name(value):
        raise FieldError(
            f"{at} must be a name of 1 to {LONGEST_NAME} printable characters without slashes, and of at "
            f"most {LONGEST_FILE_NAME} bytes, got {ascii(value)[:60]}"
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


class LaterVersionError(FieldError):
    """A result whose format is that of a later version."""


class Result:
    """A value that is kept as JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the value for `json.dumps`, with the version of the format."""
        return {"version": VERSION, **encode(self)}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the value that JSON holds.

        Raises:
            FieldError: The JSON is not such a value, or of a later version.
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
                raise FieldError(
                    f"{name} must have an entry for each of {self.members} members, got {len(entries)}"
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
            raise FieldError(f"trace.t must have at least 2 points, got {points}")
        require_keys("train_loss", "train_error", "test_error")(self.trace.values, "trace.values")
        columns = {f"trace.values.{name}": column for name, column in self.trace.values.items()}
        columns |= {"trace.squared_norms": self.trace.squared_norms, "trace.t": self.trace.t}
        for name, column in columns.items():
            if len(column) != points:
                raise FieldError(f"{name} must have an entry for each of {points} points, got {len(column)}")
            for value in column:
                require_finite(value, name)

    @property
    def key(self) -> Hashable:
        """The seed, the method and the two members."""
        return self.seed, self.method, self.members


@dataclass(frozen=True)
class AdjacentMembers:
    """The geometry of two adjacent members.

    Attributes:
        members: Their numbers, from 1.
        distance: Between them, relative to the norm of the first's parameters.
        angle: In degrees, between the ways from w0 to each of them.
        loss: The mean of their training losses.
        barrier: How far the training loss half-way on the straight line is above that; below 0 if lower.
        disagreement: The share of validation examples that they classify differently.
    """

    members: tuple[Count, Count]
    distance: Finite
    angle: Finite
    loss: Finite
    barrier: Finite
    disagreement: Finite


@dataclass(frozen=True)
class Change:
    """A mean difference over examples, and its standard error."""

    mean: Finite
    error: Annotated[Finite, at_least(0)]


@dataclass(frozen=True, kw_only=True)
class Gains:
    """What the members and their pooling change, on the examples of a diagnosis; below 0 is better.

    Attributes:
        pooled_error: The share of errors of all members together, minus the mean of theirs alone.
        pooled_loss: The same of the NLL.
        member_error: The mean share of errors of the members alone, minus that of w0.
        member_loss: The same of the NLL.
        w0_error: The share of errors of w0.
        w0_training_loss: The training loss of w0.
        tempered_loss: The mean NLL of the members alone, each at its temperature, minus that of all together
            as predicted; None without validation data.
    """

    pooled_error: Change
    pooled_loss: Change
    member_error: Change
    member_loss: Change
    w0_error: Finite
    w0_training_loss: Finite
    tempered_loss: Change | None = None


@dataclass(frozen=True)
class Diagnosis:
    """What the geometry of one ensemble's members shows.

    Attributes:
        seed: Of the run.
        method: The ensemble's.
        pairs: Its adjacent members.
        errors: Each member's error on validation data.
        pooled_error: That of all together.
        judged_on: What stood for validation data: "validation", or "training" where there is none.
        stale_loss: The training loss of the members with w0's BatchNorm statistics; None without BatchNorm.
        rates: The learning rate at which each member was taken; None where it belongs to no iteration.
        low: The lowest rate of the run.
        gains: What the members and their pooling change; None in files of older versions.
    """

    seed: int
    method: Name
    pairs: Sequence[AdjacentMembers]
    errors: Sequence[Finite]
    pooled_error: Finite
    judged_on: Literal["validation", "training"]
    stale_loss: Finite | None
    rates: Sequence[Finite | None]
    low: Finite
    gains: Gains | None = None


@dataclass(frozen=True)
class Diagnoses(Result):
    """The diagnosis of every ensemble that was examined."""

    ensembles: Sequence[Diagnosis]


@dataclass(frozen=True)
class Separation:
    """How well a score tells unknown inputs from known ones."""

    auroc: Finite
    aupr: Finite
    fpr_at_95: Finite


@dataclass(frozen=True)
class UnknownInputs:
    """How well each score tells the images of another data set from the test set."""

    images: Count
    scores: Annotated[Mapping[str, Separation], Flat()]


@dataclass(frozen=True)
class CorruptedInputs:
    """The metrics on test images that were corrupted at one strength."""

    strength: Count
    metrics: Annotated[Metrics, Flat()]


@dataclass(frozen=True, kw_only=True)
class EnsembleEvaluation(MeasuredResult):
    """Metrics of one saved ensemble on known, unknown and corrupted inputs.

    Attributes:
        task: What the metrics are of.
        method: How the ensemble was made, if it says so.
        model: Of which architecture, if it says so.
        members: How many.
        bytes: Of their weights.
        temperature: Of the pooled predictions.
        member_temperatures: Of each member, if they have any.
        member_weights: How much each member counts, if they do not count the same.
        data: The name of the data set.
        images: How many the test set has.
        test: The metrics on it, and how far another ensemble's predictions are, if one was given.
        reliability: Bins of confidence, as lists of the same length; empty for tasks without classes.
        ood: Results for each data set of unknown inputs, by name.
        corruptions: Each corruption at growing strengths, by name.
        ensemble: The folder of the ensemble.
        bytes_on_disk: Of all its files.
        environment: Where and how this was measured.
    """

    task: StoredTask = DEFAULT_TASK
    method: str | None
    model: str | None
    members: Count
    bytes: Count
    temperature: FittedNumber
    member_temperatures: Sequence[FittedNumber] | None
    data: str
    images: Count
    test: Metrics
    reliability: Mapping[str, Sequence[float]]
    ood: Mapping[str, UnknownInputs]
    corruptions: Mapping[str, Sequence[CorruptedInputs]]
    member_weights: Sequence[float] | None = None
    ensemble: str | None = None
    bytes_on_disk: int | None = None
    environment: Mapping[str, Any] | None = None

    def measured(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Yield the metrics on the test set, and on every corrupted one."""
        yield "test", self.test
        for name, strengths in self.corruptions.items():
            for index, corrupted in enumerate(strengths):
                yield f"corruptions.{name}[{index}]", corrupted.metrics


@dataclass(frozen=True, kw_only=True)
class FormatRow(MeasuredRow):
    """One ensemble in one storage format, whole or as a cascade.

    Attributes:
        seed: Of the run.
        method: Whose ensemble.
        task: What the metrics are of.
        format: The name of the storage format.
        cascade: Whether members are evaluated only until one is sure.
        members: How many there are.
        bytes: Of the stored members.
        file_bytes: Of all files on disk.
        bytes_of_one: Of the weights of one model in float32.
        mean_members: Mean number of members evaluated per example.
        most_members: The largest number.
        kl: Divergence from the predictions of the same members in float32, all evaluated, in nats.
        metrics: On the test set.
    """

    remedy = "remove that line and run pfge formats again, which measures what is missing"

    seed: int
    method: Name
    task: StoredTask = DEFAULT_TASK
    format: Name
    cascade: bool
    members: Count
    bytes: Count
    file_bytes: Count
    bytes_of_one: Count
    mean_members: Annotated[Finite, at_least(1)]
    most_members: Count
    kl: Finite
    metrics: OfParts

    @property
    def key(self) -> Hashable:
        """The seed, the method, the format, and whether it is a cascade."""
        return self.seed, self.method, self.format, self.cascade

    def measured(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Yield the metrics on each part."""
        yield from self.metrics.items()


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
                raise FieldError(f"{name} must be two or more growing numbers, got {list(axis)[:3]}")
        if len(self.values) != len(self.y) or any(len(row) != len(self.x) for row in self.values):
            raise FieldError(f"values must have {len(self.y)} rows of {len(self.x)} numbers")


KEY = "lines"


def record_of_lines(path: Path) -> Path:
    """Return the file that records the lines of a file of results."""
    return path.with_suffix(".lines.json")


def record_lines(path: Path) -> None:
    """Record the lines of a file, in their order.

    Raises:
        StorageError: A line that is recorded is missing.
    """
    require_recorded(path)
    lines = [*_digests(path)]
    if lines != _recorded(path):
        write_json(record_of_lines(path), {KEY: lines})


def require_recorded(path: Path) -> None:
    """Raise a StorageError if a recorded line is missing; without a file or a record, nothing is required."""
    if not path.exists():
        return
    recorded = {*_recorded(path)}  # before the lines, of which another process may add one
    missing = len(recorded.difference(_digests(path))) if recorded else 0
    if missing:
        lines, record = "a line" if missing == 1 else f"{missing} lines", record_of_lines(path).name
        raise StorageError(
            f"{path} lacks {lines} that it had by {record}; restore the file, or remove {record} and run the "
            "same command, which does again what is missing"
        )


def forget_lines(path: Path) -> None:
    """Remove the record of a file that is gone: to remove it is how all its results are made again."""
    if record_of_lines(path).exists() and not path.exists():
        record_of_lines(path).unlink()


def split_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, and what follows the last line end: it was torn by a crash."""
    try:
        return read_bounded(path).split(b"\n")
    except UnreadableFileError as error:
        raise StorageError(str(error)) from None


def _recorded(path: Path) -> list[str]:
    record = record_of_lines(path)
    if not record.exists():
        return []
    lines = read_json_object(record).get(KEY)
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise StorageError(f"{record} must have a list of texts as `{KEY}`; remove it")
    return lines


def _digests(path: Path) -> Iterator[str]:
    """Yield the SHA-256 of the content of each whole line that is a JSON object."""
    for line in split_lines(path)[:-1]:
        try:
            value = parse_json(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield content_digest(value)


Row = TypeVar("Row", bound=ResultRow)


@dataclass(frozen=True)
class ReadLines(Generic[Row]):
    """The rows of a file, and what to tell about each line that is none."""

    rows: list[Row]
    left_out: list[str]


def append_row(path: Path, row: ResultRow) -> None:
    """Add one row with the SHA-256 of its content; it is on disk when this returns.

    Processes that do so at once wait for each other.

    Raises:
        StorageError: A line that was written before is missing.
    """
    with open(path, "a", encoding="utf-8", opener=regular_only) as file:
        lock_descriptor(file.fileno())
        _drop_torn_line(path)
        require_recorded(path)
        file.write(json.dumps(seal(row.to_json()), ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
        record_lines(path)


def read_rows(path: Path, kind: type[Row]) -> ReadLines[Row]:
    """Return the rows of a file in their order, and the reason for each line that is left out.

    Lines are left out that are not JSON, that are not as they were written, that lack what a row needs, that
    repeat an earlier row, or that are of another task than the first. It is also told if lines are missing.
    """
    rows, left_out = [], []
    if path.exists() and (torn := split_lines(path)[-1]):
        left_out.append(
            f"the end of {path.name} is left out: its last line, of {len(torn)} bytes, is being written, or "
            "was torn by a kill; the same command writes it again"
        )
    for number, found in _lines(path, kind):
        if isinstance(found, str):
            left_out.append(f"line {number} of {path.name} is left out: {found}")
        else:
            rows.append(found)
    try:
        require_recorded(path)
    except StorageError as error:
        left_out.append(str(error))
    return ReadLines(rows, left_out)


def require_rows(path: Path, kind: type[Row], task: Task | None = None) -> list[Row]:
    """Return the rows of a file that is to be continued, in their order.

    Args:
        path: The file.
        kind: Of the rows.
        task: Of all rows that have one; that of the first if None.

    Raises:
        StorageError: A line is not such a row, or is missing.
    """
    rows = []
    for number, found in _lines(path, kind, task):
        if isinstance(found, str):
            raise StorageError(f"line {number} of {path} cannot be used: {found}")
        rows.append(found)
    require_recorded(path)
    return rows


def put_in_order(path: Path, kind: type[Row], order: Sequence[Hashable]) -> None:
    """Put the rows of a file in the order of these keys, and others behind them; no process may add one.

    All of them are recorded then, also one that a killed process had no time to record.

    Raises:
        StorageError: A line is not such a row, or is missing.
    """
    keys = [row.key for row in require_rows(path, kind)]
    places = {key: place for place, key in enumerate(order)}
    wanted = sorted(range(len(keys)), key=lambda number: places.get(keys[number], len(places)))
    if wanted != list(range(len(keys))):
        lines = split_lines(path)
        write_text(path, "".join(f"{lines[number].decode()}\n" for number in wanted))
    if keys:
        record_lines(path)


def unsealed_lines(path: Path) -> list[int]:
    """Return the numbers of the lines of a file that state no SHA-256; all of them must be rows."""
    lines = split_lines(path)[:-1]
    return [number for number, line in enumerate(lines, 1) if not is_sealed(parse_json(line))]


def _lines(path: Path, kind: type[Row], task: Task | None = None) -> Iterator[tuple[int, Row | str]]:
    """Yield the number of each whole line and its row, or why it has none."""
    if not path.exists():
        return
    first: dict[Hashable, int] = {}
    for number, line in enumerate(split_lines(path)[:-1], 1):
        found = _parse(line, kind)
        if isinstance(found, ResultRow) and first.setdefault(found.key, number) != number:
            yield number, f"it repeats line {first[found.key]}; remove that line"
        elif isinstance(found, MeasuredRow) and found.task != (task := task or found.task):
            yield number, f"its task is {found.task}, and that of the file {task}; {kind.remedy}"
        else:
            yield number, found


def _parse(line: bytes, kind: type[Row]) -> Row | str:
    try:
        value = parse_json(line)
    except (ValueError, RecursionError) as error:
        return f"it must be JSON, but {error}; remove that line"
    try:
        return kind.from_json(unseal(value) if isinstance(value, dict) else value)
    except BrokenSealError as error:
        return f"{error}; otherwise {kind.remedy}"
    except LaterVersionError as error:
        return str(error)
    except FieldError as error:
        older = "; it may come from an older version of pfge" if _has_no_version(value) else ""
        return f"{error}{older}; {kind.remedy}"


def _has_no_version(value: Any) -> bool:
    return isinstance(value, dict) and "version" not in value


def _drop_torn_line(path: Path) -> None:
    data = read_bounded(path)
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
