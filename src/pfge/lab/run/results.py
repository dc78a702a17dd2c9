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
"""Version of the format of results. The oldest results have the same keys, but no version."""


def _require_fitted(value: Any, at: str) -> None:
    for number in value if isinstance(value, list | tuple) else [value]:
        require_finite(decode(float, number, at), at)


def _require_name(value: str, at: str) -> None:
    """Refuse a name that would lead out of the run's folder, where files have it, or control a terminal."""
    if len(value) > LONGEST_NAME or not is_file_name(value):
        raise FieldError(
            f"{at} must be a name of 1 to {LONGEST_NAME} printable characters without slashes, and of at "
            f"most {LONGEST_FILE_NAME} bytes, got {ascii(value)[:60]}"
        )


LONGEST_NAME = 100
Name = Annotated[str, _require_name]
"""Name of a method or a storage format."""
Quantity = Literal["train_loss", "train_error", "test_error"]
"""Quantity that is measured on a plane and along every curve."""
Count = Annotated[int, at_least(1)]
Finite = Annotated[float, require_finite]
FittedNumber = Annotated[Any, _require_fitted]
"""A calibration: a number, or a list with one for each label."""
Point = tuple[Finite, Finite]
"""Coordinates on a plane."""
StoredTask = Annotated[Task, StoredAs(task_to_manifest, task_from_manifest)]
"""A task, written as in a manifest; the default task is not written."""
Metrics = Mapping[str, Finite]
"""Metrics by name; the main metrics of the result's task are always present."""
MemberMetrics = Mapping[str, float]
"""Metrics of one member, which may have diverged: NaN and infinity are allowed."""
MetricsBySplit = Annotated[Mapping[str, Metrics], Flat(("test", "validation")), require_keys("test")]
"""Metrics on each split of the data; each split is a key of its own in JSON."""


class LaterVersionError(FieldError):
    """A result whose format is that of a later version."""


class Result:
    """A value that is stored as JSON."""

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
    """What the user can do about a line that cannot be read."""

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Identity of the row: no two lines of a file have the same."""


class MeasuredResult(Result, ABC):
    """A result with the metrics of its task."""

    task: StoredTask

    @abstractmethod
    def measured(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Yield all metrics of the result, each with its key in JSON."""

    def __post_init__(self) -> None:
        needed = [metric.name for metric in self.task.metrics if metric.is_main and metric.of is object]
        for at, metrics in self.measured():
            require_keys(*needed)(metrics, at if at.isprintable() else ascii(at))


class MeasuredRow(MeasuredResult, ResultRow, ABC):
    """A line with metrics; all lines of a file have the same task."""


def expected_rows(methods: Iterable[str]) -> set[str]:
    """Return the rows of a finished comparison of these methods."""
    return {START, *methods, *(starred(name) for name in methods if starred(name) in known_rows())}


@dataclass(frozen=True)
class AtTemperature:
    """Metrics of pooled predictions with a temperature of the mean, fitted on validation data."""

    temperature: FittedNumber
    metrics: MetricsBySplit


@dataclass(frozen=True)
class AtMemberTemperatures:
    """Metrics of pooled predictions with a temperature for each member."""

    temperatures: Sequence[FittedNumber]
    metrics: MetricsBySplit


@dataclass(frozen=True, kw_only=True)
class ComparisonRow(MeasuredRow):
    """One ensemble of a comparison: its cost and its metrics.

    Attributes:
        seed: Seed of the run.
        method: Name of the row, such as `PFGE` or `FGE*`.
        task: Task of the model, which decides the metrics.
        members: Number of members.
        bytes: Size of all members' weights.
        bytes_of_one: Size of one model's weights.
        iterations: Training iterations beyond w0.
        trainings: Number of trainings that began from their own start.
        member_iterations: Iteration at which each member was collected; None for samples.
        metrics: Metrics of the pooled predictions on each split.
        calibrated: Metrics with one temperature, if the run has validation data.
        calibrated_members: Metrics with a temperature for each member.
        each: Metrics of each member alone, on each split.
        growing: Metrics of the first 1, 2, ... members pooled, on each split.
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
    metrics: MetricsBySplit
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
        seed: Seed of the run.
        method: Method that made the members.
        members: Numbers of the two members, from 1.
        member_iterations: Iterations at which the two members were collected.
        settings: Settings of the fit and the trace.
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
        members: Numbers of the two members, from 1.
        distance: Distance of the two, relative to the norm of the first member's parameters.
        angle: Angle at w0 between the two members, in degrees.
        loss: Mean training loss of the two.
        barrier: Training loss half-way on the straight line minus `loss`.
        disagreement: Fraction of validation examples that the two classify differently.
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
    """How much the members, and pooling them, change errors and losses in a diagnosis; below 0 is better.

    Attributes:
        pooled_error: Error rate of the pooled members minus the mean error rate of single members.
        pooled_loss: NLL of the pooled members minus the mean NLL of single members.
        member_error: Mean error rate of single members minus the error rate of w0.
        member_loss: Mean NLL of single members minus the NLL of w0.
        w0_error: Error rate of w0.
        w0_training_loss: Training loss of w0.
        tempered_loss: Mean NLL of single members, each at its temperature, minus the NLL of the pooled
            members without a temperature; None without validation data.
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
    """Geometry of one ensemble's members.

    Attributes:
        seed: Seed of the run.
        method: Method that made the ensemble.
        pairs: Each pair of adjacent members.
        errors: Error rate of each member on validation data.
        pooled_error: Error rate of the pooled members.
        judged_on: "validation", or "training" if the run has no validation data.
        stale_loss: Training loss of the members with w0's BatchNorm statistics; None without BatchNorm.
        rates: Learning rate at which each member was collected; None for samples.
        low: Lowest learning rate of the run.
        gains: Change of errors and losses by members and pooling; None in files of older versions.
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
    """Diagnoses of all examined ensembles."""

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
        task: Task of the model, which decides the metrics.
        method: Method that made the ensemble, if the manifest has it.
        model: Name of the architecture, if the manifest has it.
        members: Number of members.
        bytes: Size of all members' weights.
        temperature: Temperature of the pooled predictions.
        member_temperatures: Temperature of each member, if the ensemble has them.
        member_weights: Pooling weight of each member, if the weights differ.
        data: Name of the data set.
        images: Number of test examples.
        test: Metrics on the test set, and the distance to another ensemble's predictions, if one was given.
        reliability: Bins of confidence, as lists of the same length; empty for tasks without classes.
        ood: Results for each data set of unknown inputs, by name.
        corruptions: Each corruption at growing strengths, by name.
        ensemble: Folder of the ensemble.
        bytes_on_disk: Size of all files of the ensemble.
        environment: Hardware and versions of the measurement.
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
        seed: Seed of the run.
        method: Method that made the ensemble.
        task: Task of the model, which decides the metrics.
        format: Name of the storage format.
        cascade: Whether members are evaluated only until one is confident.
        members: Number of members.
        bytes: Size of the stored members.
        file_bytes: Size of all files on disk.
        bytes_of_one: Size of one model's weights in float32.
        mean_members: Mean number of members evaluated per example.
        most_members: Largest number of members evaluated for an example.
        kl: Divergence from the predictions of all members in float32, in nats.
        metrics: Metrics on the test set.
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
    metrics: MetricsBySplit

    @property
    def key(self) -> Hashable:
        """The seed, the method, the format, and whether it is a cascade."""
        return self.seed, self.method, self.format, self.cascade

    def measured(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Yield the metrics on each part."""
        yield from self.metrics.items()


SMALLEST_SPAN = 1e-9
"""Smallest extent of an axis that can be drawn."""


@dataclass(frozen=True, kw_only=True)
class Landscape(Result):
    """A quantity on a grid over the plane through three members, and the positions of others on it.

    Attributes:
        seed: Seed of the run.
        members: Numbers of the three members, from 1.
        quantity: Name of the quantity.
        images: Number of images that the quantity was measured on.
        x: Coordinates of the grid's columns, growing.
        y: Coordinates of the grid's rows, growing.
        values: A row of the grid for each y, an entry for each x.
        w0: Position of the start weights.
        pfge: Positions of PFGE's members.
        means: Positions of the methods that average the trajectory, by name.
        trajectory: Points of the trajectory, if the run has them.
        curves: Points along each curve that was fitted between adjacent members.
    """

    seed: int
    members: tuple[Count, Count, Count]
    quantity: Quantity
    images: Count
    x: Sequence[Finite]
    y: Sequence[Finite]
    values: Sequence[Sequence[Finite]]
    w0: Point
    pfge: Sequence[Point]
    means: Mapping[str, Point]
    trajectory: Sequence[Point] | None = None
    curves: Sequence[Sequence[Point]]

    def __post_init__(self) -> None:
        for name, axis in (("x", self.x), ("y", self.y)):
            if len(axis) < 2 or not axis[-1] - axis[0] > SMALLEST_SPAN:
                raise FieldError(f"{name} must be two or more growing numbers, got {list(axis)[:3]}")
        if len(self.values) != len(self.y) or any(len(row) != len(self.x) for row in self.values):
            raise FieldError(f"values must have {len(self.y)} rows of {len(self.x)} numbers")


LINES_KEY = "lines"


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
        write_json(record_of_lines(path), {LINES_KEY: lines})


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
            "same command, which repeats the missing work"
        )


def forget_lines(path: Path) -> None:
    """Remove the record of a missing file; users remove a file to have all its results made again."""
    if record_of_lines(path).exists() and not path.exists():
        record_of_lines(path).unlink()


def split_lines(path: Path) -> list[bytes]:
    """Return the lines of a file; a crash may have torn the last entry, which has no line end."""
    try:
        return read_bounded(path).split(b"\n")
    except UnreadableFileError as error:
        raise StorageError(str(error)) from None


def _recorded(path: Path) -> list[str]:
    record = record_of_lines(path)
    if not record.exists():
        return []
    lines = read_json_object(record).get(LINES_KEY)
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise StorageError(f"{record} must have a list of strings as {LINES_KEY}; remove it")
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
    """The rows of a file, and a message for each line that cannot be used."""

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
    repeat an earlier row, or that have another task than the first. Missing lines get a message, too.
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
        kind: Class of the rows.
        task: Task that every row with metrics must have; None takes the task of the first row.

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
    """Yield the number of each whole line, and its row or the reason why it cannot be used."""
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
