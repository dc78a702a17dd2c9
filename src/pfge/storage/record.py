"""The attributes of an ensemble: one record, which its manifest holds."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import prod
from pathlib import Path
from typing import Any

from pfge.calibration import UNSCALED, Temperatures
from pfge.errors import InvalidTypeError, InvalidValueError
from pfge.storage.files import (
    LARGEST_INPUT,
    LARGEST_RESIZE,
    LARGEST_SIZE,
    MOST_DIMENSIONS,
    StorageError,
)
from pfge.tasks import DEFAULT_TASK, Task, task_from_manifest, task_to_manifest
from pfge.tasks.classification import require_classification
from pfge.views import View, Views, require_few_views


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """How inputs are made and what outputs are called, so that the training data is not needed.

    Every field is optional. Nothing in it is executed or imported.

    Args:
        classes: Names of the classes or labels, in the order of the model's outputs.
        mean: Mean of each image channel, subtracted after pixels are scaled to 0..1.
        std: Standard deviation of each image channel, by which the difference is divided.
        input_shape: Shape of one example, such as [C, H, W], if the model takes one tensor of numbers.
        resize: Length in pixels of an image's shorter side before its center is cropped.
        outputs: Number of outputs that the model is built with.
        channels: Number of channels or features that the model is built with.

    Raises:
        ValueError: A field has the wrong type, or fields contradict each other.

    Example:
        >>> from pfge.storage.record import InputSpec
        >>> InputSpec(classes=("cat", "dog"), mean=(0.5,), std=(0.25,), input_shape=(1, 28, 28))
        InputSpec(classes=('cat', 'dog'), mean=(0.5,), std=(0.25,), input_shape=(1, 28, 28))
    """

    classes: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    input_shape: tuple[int, ...] | None = None
    resize: int | None = None
    outputs: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        if self.classes is not None and not all(isinstance(name, str) for name in self.classes):
            raise InvalidValueError(f"classes must be strings, got {self.classes!r}")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is not None and not all(isinstance(v, float | int) and _is_finite(v) for v in values):
                raise InvalidValueError(f"{name} must be finite numbers, got {values!r}")
        if len(self.mean or ()) != len(self.std or ()):
            raise InvalidValueError(
                f"mean and std must have the same length, got {self.mean!r} and {self.std!r}"
            )
        if not all(value > 0 for value in self.std or ()):
            raise InvalidValueError(f"std must be above 0, got {self.std!r}")
        for name in ("input_shape", "resize", "outputs", "channels"):
            value = getattr(self, name)
            sizes = value if isinstance(value, tuple) else () if value is None else (value,)
            if not all(type(size) is int and 0 < size <= LARGEST_SIZE for size in sizes):
                raise InvalidValueError(
                    f"{name} must be above 0 and at most {LARGEST_SIZE}, got {_shorten(value)}"
                )
        self._require_consistent_sizes()

    def _require_consistent_sizes(self) -> None:
        """Refuse sizes that would take much memory, or fail, once an input is made."""
        shape = self.input_shape
        if self.classes is not None and self.outputs is not None and len(self.classes) != self.outputs:
            raise InvalidValueError(
                f"classes must have a name for each output, got {len(self.classes)} names and "
                f"{self.outputs} outputs"
            )
        if shape is None:
            return
        if not is_small_input(shape):
            raise InvalidValueError(
                f"input_shape must have at most {MOST_DIMENSIONS} dimensions and {LARGEST_INPUT:,} numbers, "
                f"got {_shorten(shape)}"
            )
        if self.mean is not None and len(shape) == 3 and len(self.mean) != shape[0]:
            raise InvalidValueError(
                f"mean must have a number for each channel of [C, H, W], got {len(self.mean)} for {shape}"
            )
        if self.resize is not None and self.resize > LARGEST_RESIZE * max(shape):
            raise InvalidValueError(
                f"resize must be at most {LARGEST_RESIZE} times the height of {shape}, got {self.resize}"
            )

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.given().items())
        return f"InputSpec({given})"

    def given(self) -> dict[str, Any]:
        """Return the fields that have a value."""
        return {name: value for name, value in asdict(self).items() if value is not None}


NO_INPUT_SPEC = InputSpec()


def is_small_input(shape: Sequence[int]) -> bool:
    """Return whether a manifest may have inputs of this shape; larger ones are made from the data alone."""
    return len(shape) <= MOST_DIMENSIONS and prod(shape) <= LARGEST_INPUT


def _is_finite(value: float) -> bool:
    return -sys.float_info.max <= value <= sys.float_info.max  # integers may be larger than any float


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


@dataclass(frozen=True)
class UnknownTask:
    """A task that this version cannot construct, such as the user's own.

    Args:
        entry: The task's entry in the manifest, kept as it is.
        reason: Why it cannot be constructed, and the remedy.
    """

    entry: Any
    reason: str


def _encode_temperatures(temperatures: Temperatures) -> dict[str, Any]:
    members, weights = temperatures.members, temperatures.weights
    entries: dict[str, Any] = {
        "temperature": temperatures.pooled,
        "member_temperatures": None if members is None else list(members),
    }
    return entries if weights is None else {**entries, "member_weights": list(weights)}


def _decode_temperatures(manifest: Mapping[str, Any]) -> Temperatures:
    pooled = manifest.get("temperature", 1.0)
    members, weights = manifest.get("member_temperatures"), manifest.get("member_weights")
    try:
        return Temperatures(
            _per_label(pooled),
            None if members is None else tuple(map(_per_label, members)),
            None if weights is None else tuple(weights),
        )
    except (TypeError, ValueError):
        found = f"temperature={_shorten(pooled)}, member_temperatures={_shorten(members)}"
        raise InvalidValueError(
            "temperatures must be above 0, and member_weights above 0 with the sum 1; got "
            f"{found}, member_weights={_shorten(weights)}"
        ) from None


def _per_label(value: Any) -> Any:
    """Return a number as it is, and a list as a tuple with one number for each label."""
    return tuple(value) if isinstance(value, list) else value


def _encode_task(task: Task | UnknownTask) -> dict[str, Any]:
    entry = task.entry if isinstance(task, UnknownTask) else task_to_manifest(task)
    return {} if entry is None else {"task": entry}


def _decode_task(manifest: Mapping[str, Any]) -> Task | UnknownTask:
    entry = manifest.get("task")
    try:
        return task_from_manifest(entry)
    except ValueError as error:
        return UnknownTask(entry, str(error))


def _encode_input_spec(spec: InputSpec) -> dict[str, Any]:
    return {"usage": given} if (given := spec.given()) else {}


def _decode_input_spec(manifest: Mapping[str, Any]) -> InputSpec:
    match manifest.get("usage"):
        case None:
            return NO_INPUT_SPEC
        case dict(entry):
            known = {field.name for field in fields(InputSpec)}  # a later version may have added others
            return InputSpec(**{n: _as_tuple(n, value) for n, value in entry.items() if n in known})
        case entry:
            raise InvalidTypeError(f"expected an object, got {_shorten(entry)}")


def _as_tuple(name: str, value: Any) -> Any:
    if name in ("classes", "mean", "std", "input_shape"):
        if not isinstance(value, list):
            raise InvalidValueError(f"{name} must be a list, got {value!r}")
        return tuple(value)
    return value


def _encode_views(views: Views | None) -> dict[str, Any]:
    return {} if views is None else {"views": asdict(views)}


def _decode_views(manifest: Mapping[str, Any]) -> Views | None:
    match manifest.get("views"):
        case None:
            return None
        case {"views": list(views), "border": list(border)}:
            require_few_views(len(views))
            return Views(tuple(View(**view) for view in views), tuple(border))
        case entry:
            raise InvalidValueError(f"expected the lists `views` and `border`, got {_shorten(entry)}")


def _codec(
    key: str, encode: Callable[[Any], dict[str, Any]], decode: Callable[[Mapping[str, Any]], Any]
) -> dict[str, Any]:
    """Return the metadata of a field that a manifest holds.

    Args:
        key: Key of the manifest's entry, for errors.
        encode: Returns the manifest's entries for a value; an empty dict for a default that is left out.
        decode: Returns the value for a manifest, which may lack it or be a stranger's. A malformed entry is
            a ValueError or a TypeError.
    """
    return {"key": key, "encode": encode, "decode": decode}


def _string(key: str) -> dict[str, Any]:
    """Return the metadata of a field that is a string or None, and is always written."""

    def decode(manifest: Mapping[str, Any]) -> str | None:
        value = manifest.get(key)
        if not isinstance(value, str | None):
            raise InvalidTypeError(f"expected a string or null, got {_shorten(value)}")
        return value

    return _codec(key, lambda value: {key: value}, decode)


@dataclass(frozen=True, kw_only=True)
class EnsembleRecord:
    """All attributes of an ensemble apart from its members and the function that builds the module.

    A new attribute of ensembles is one more field here, with its encoder and decoder: copies, folders, packed
    files and adapters then keep it.

    Args:
        method: How the members were made, for people.
        model: How the module is built, for people; nothing is ever imported because of it.
        iterations: Iteration of each member, None where it has no single one. Where a manifest has them
            depends on its format, so each format reads and writes them itself.
        temperatures: Calibration of the members and of their mean.
        task: Meaning of the module's outputs.
        input_spec: How to use the ensemble without its training data.
        views: Views of each image in which every member predicts it; None for the image alone.
    """

    method: str | None = field(default=None, metadata=_string("method"))
    model: str | None = field(default=None, metadata=_string("model"))
    iterations: tuple[int | None, ...] = ()
    temperatures: Temperatures = field(
        default=UNSCALED, metadata=_codec("temperature", _encode_temperatures, _decode_temperatures)
    )
    task: Task | UnknownTask = field(
        default=DEFAULT_TASK, metadata=_codec("task", _encode_task, _decode_task)
    )
    input_spec: InputSpec = field(
        default=NO_INPUT_SPEC, metadata=_codec("usage", _encode_input_spec, _decode_input_spec)
    )
    views: Views | None = field(default=None, metadata=_codec("views", _encode_views, _decode_views))

    @property
    def known_task(self) -> Task:
        """The task.

        Raises:
            ValueError: This version cannot construct the task.
        """
        if isinstance(self.task, UnknownTask):
            raise InvalidValueError(self.task.reason)
        return self.task

    def with_task(self, path: Path, task: Task | None) -> "EnsembleRecord":
        """Return the record with a task of the user's own, or check that the saved one is known.

        Args:
            path: The manifest's file, for errors.
            task: The user's own task; None for the saved one.

        Raises:
            StorageError: No task is given, and this version cannot construct the saved one.
        """
        try:
            return replace(self, task=self.known_task if task is None else task)
        except ValueError as error:
            raise StorageError(f"{path}: {error}") from None

    def require_fit(self, members: int) -> None:
        """Raise a ValueError if attributes contradict each other or the number of members."""
        if len(self.iterations) != members:
            raise InvalidValueError(
                f"iterations has {len(self.iterations)} entries, expected {members} (one per member)"
            )
        temperatures, task = self.temperatures, self.known_task
        temperatures.require_members(members)
        if self.views is not None:
            require_classification(task, "a mean over views")
        if task.needs_calibration and temperatures.members is not None and temperatures.pooled != 1:
            raise InvalidValueError(
                f"{task} fits the variance of the noise either for each member or for their mean, got both: "
                f"members={temperatures.members}, pooled={temperatures.pooled}; leave one of them out"
            )

    def to_manifest(
        self, kind: str, version: int, about: Mapping[str, Any], files: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a manifest with this record.

        Args:
            kind: Name of the format.
            version: Version of the format.
            about: Entries of the format itself that come before the calibration.
            files: Entries of the format itself that come last.
        """
        entries: dict[str, Any] = {}
        for each in fields(self):
            if each.metadata:
                entries |= each.metadata["encode"](getattr(self, each.name))
        names = {key: entries.pop(key) for key in ("method", "model")}
        return {"format": kind, "version": version, **names, **about, **entries, **files}

    @classmethod
    def from_manifest(
        cls, path: Path, manifest: Mapping[str, Any], iterations: Sequence[int | None] | None = None
    ) -> "EnsembleRecord":
        """Return the record in a manifest, which may be of an older version, or a stranger's.

        Args:
            path: The manifest's file, for errors.
            manifest: Its content.
            iterations: Iteration of each member; None if only attributes of the whole ensemble are needed.

        Raises:
            StorageError: An entry is malformed.
        """
        found: dict[str, Any] = {}
        for each in fields(cls):
            if each.metadata:
                try:
                    found[each.name] = each.metadata["decode"](manifest)
                except (TypeError, ValueError) as error:
                    raise StorageError(f"{path} has an invalid `{each.metadata['key']}`: {error}") from None
        record = cls(iterations=tuple(iterations or ()), **found)
        if iterations is not None:
            try:
                record.temperatures.require_members(len(iterations))
            except ValueError as error:
                raise StorageError(f"{path} has an invalid `temperature`: {error}") from None
        return record


NO_RECORD = EnsembleRecord()
