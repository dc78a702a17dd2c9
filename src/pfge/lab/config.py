"""An experiment and its TOML file: every setting has a default, a type and a check."""

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal

from pfge.methods import METHODS, Setting, Variant

WITHOUT_EFFECT = ("data.root", "data.download", "data.workers", "engine.checkpoint_seconds")
"""Settings that a run may be continued with when they have changed."""

ABOVE_0 = (
    "data.batch_size",
    "data.evaluation_batch_size",
    "ensemble.cycle",
    "ensemble.period",
    "ensemble.length",
)
AT_LEAST_0 = (
    "data.train_images",
    "data.test_images",
    "data.crop_padding",
    "data.batch_norm_images",
    "data.workers",
    "pretrain.epochs",
    "pretrain.rate",
    "pretrain.momentum",
    "pretrain.weight_decay",
    "ensemble.momentum",
    "ensemble.weight_decay",
    "engine.checkpoint_seconds",
)


class ConfigError(ValueError):
    """A setting that does not exist or cannot be; the message names it, the value and what is allowed."""


@dataclass(frozen=True)
class DataSettings:
    """Which data, how it is split, and how it becomes batches."""

    name: str = "digits"
    root: str = ""  # "" is $PFGE_DATA, or ~/.cache/pfge
    download: bool = False
    validation: int | float = 0  # images, or a share, taken out of the training data
    halve_test: bool = False  # for a w0 that saw all training data: half of the test set is validation
    split_seed: int = 0
    train_images: int = 0  # how many of those left for training; 0 is all
    test_images: int = 0  # how many of the test set, or of each half; 0 is all
    batch_size: int = 50
    evaluation_batch_size: int = 500
    crop_padding: int = 0
    flip: bool = False
    mean: tuple[float, ...] = ()  # () is the data set's own
    std: tuple[float, ...] = ()
    batch_norm_images: int = 0  # images that BatchNorm is refreshed with; 0 is all training images
    workers: int = 0  # processes that read images which do not fit into memory


@dataclass(frozen=True)
class ModelSettings:
    """Which architecture."""

    name: str = "small_conv"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PretrainSettings:
    """Where w0 comes from: a file, or a model as it is built, trained by the paper's recipe of SGD."""

    weights: str = ""  # a checkpoint of your own; "" builds a model
    options: dict[str, Any] = field(default_factory=dict)  # for building that model alone, as trained weights
    epochs: float = 20.0  # 0 takes the model as it is built
    rate: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4


@dataclass(frozen=True)
class EnsembleSettings:
    """How the ensembling phase runs: the same for every method."""

    methods: tuple[str, ...] = METHODS
    unit: Literal["epochs", "iterations"] = "epochs"  # of cycle, period and length
    cycle: float = 2.0
    period: float = 10.0
    length: float = 40.0
    low: float = 5e-4
    high: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    variant: Variant = "paper"
    average_start: Literal["variant", "yes", "no"] = "variant"
    clear_momentum: bool = True

    def setting(self, per_epoch: int) -> Setting:
        """Return the setting in iterations."""
        scale = per_epoch if self.unit == "epochs" else 1
        cycle, period, length = (max(round(scale * x), 1) for x in (self.cycle, self.period, self.length))
        average_start = {"variant": None, "yes": True, "no": False}[self.average_start]
        return Setting(
            length, cycle, period, self.low, self.high, self.variant, average_start, self.clear_momentum
        )


@dataclass(frozen=True)
class EngineSettings:
    """On which hardware, and how."""

    accelerator: str = "auto"
    devices: int | str = 1
    nodes: int = 1
    strategy: str = "auto"
    precision: Literal["32-true", "bf16-mixed", "bf16-true"] = "32-true"
    channels_last: bool = True
    compile: bool = False
    checkpoint_seconds: float = 60.0


@dataclass(frozen=True)
class Experiment:
    """A whole comparison."""

    name: str = "digits"
    seeds: tuple[int, ...] = (1, 2, 3)
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    pretrain: PretrainSettings = PretrainSettings()
    ensemble: EnsembleSettings = EnsembleSettings()
    engine: EngineSettings = EngineSettings()

    def __post_init__(self) -> None:
        values = _flat(self)
        for key in ABOVE_0:
            if not 0 < values[key] < inf:  # asks for what must hold, which NaN does not
                raise ConfigError(f"{key} must be above 0 and finite, got {values[key]}")
        for key in AT_LEAST_0:
            if not 0 <= values[key] < inf:
                raise ConfigError(f"{key} must be at least 0 and finite, got {values[key]}")
        if not 0 <= self.ensemble.low <= self.ensemble.high < inf:
            raise ConfigError(
                f"ensemble.low and ensemble.high must satisfy 0 <= low <= high and be finite, "
                f"got {self.ensemble.low} and {self.ensemble.high}"
            )
        if self.ensemble.length < self.ensemble.period or self.ensemble.period < self.ensemble.cycle:
            raise ConfigError(
                f"ensemble must have cycle <= period <= length, got {self.ensemble.cycle}, "
                f"{self.ensemble.period} and {self.ensemble.length}"
            )
        if "SWAG" in self.ensemble.methods and self.ensemble.length < 2 * self.ensemble.cycle:
            raise ConfigError(
                f"ensemble.length must be two cycles or more, as SWAG needs two points, got "
                f"{self.ensemble.length} with a cycle of {self.ensemble.cycle}; or leave it out of "
                "ensemble.methods"
            )
        unknown = [name for name in self.ensemble.methods if name not in METHODS]
        if unknown:
            raise ConfigError(f"ensemble.methods must be among {', '.join(METHODS)}, got {unknown[0]!r}")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"seeds must be one or more different numbers, got {list(self.seeds)}")
        for key in ("model.options", "pretrain.options"):
            if taken := sorted({"name", "classes", "channels"} & values[key].keys()):
                raise ConfigError(f"{key} must leave {taken[0]} out, which model.name and the data decide")
        if len(self.data.mean) != len(self.data.std):
            raise ConfigError(f"data.mean and data.std go together, got {self.data.mean} and {self.data.std}")


def load_experiment(path: Path | None, overrides: typing.Sequence[str] = ()) -> Experiment:
    """Read an experiment, or take the default one, and apply overrides such as `ensemble.high=0.1`."""
    table: dict[str, Any] = {}
    if path is not None:
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"there is no config file {path}; give the path of a .toml file") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} must be TOML: {error}") from None
    for override in overrides:
        _override(table, override)
    experiment: Experiment = _parse(Experiment, table, "")
    return experiment


def differences(old: Experiment, new: Experiment) -> list[str]:
    """Return the settings of `new` that would give other results than `old`, each with both values."""
    found = []
    for key, value in _flat(new).items():
        if key not in WITHOUT_EFFECT and value != (before := _flat(old)[key]):
            found.append(f"{key} = {_toml(value)} (was {_toml(before)})")
    return found


def to_toml(experiment: Experiment) -> str:
    """Return the experiment as TOML, every setting written out."""
    tables = dataclasses.asdict(experiment)
    lines = [f"{key} = {_toml(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _flat(experiment: Experiment) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in dataclasses.asdict(experiment).items():
        entries = (
            {f"{name}.{key}": item for key, item in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
        flat |= entries
    return flat


def _override(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(
            f"an override is written key=value, got {override!r}; for example ensemble.high=0.1"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a word needs no quotes on the command line
    *path, name = key.strip().split(".")
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{key.strip()!r} is not a setting: {part} is no table")
    table[name] = value


def _parse(kind: type[Any], table: Any, prefix: str) -> Any:
    if not isinstance(table, dict):
        raise ConfigError(f"{prefix.rstrip('.')} must be a table, got {table!r}")
    kinds = typing.get_type_hints(kind)
    for key in table:
        if key not in kinds:
            close = difflib.get_close_matches(key, kinds, n=1)
            hint = f"did you mean {prefix}{close[0]}? " if close else ""
            raise ConfigError(f"{prefix}{key} is not a setting; {hint}allowed: {', '.join(kinds)}")
    return kind(**{key: _convert(kinds[key], value, prefix + key) for key, value in table.items()})


def _convert(kind: Any, value: Any, key: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _parse(typing.cast("type[Any]", kind), value, f"{key}.")
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(f"{key} must be one of {', '.join(map(repr, arguments))}, got {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{key} must be a list, got {value!r}")
        return tuple(_convert(arguments[0], item, key) for item in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise ConfigError(f"{key} must be a table, got {value!r}")
        return value
    allowed = arguments if origin is types.UnionType else (kind,)
    # bool is an int to Python, not to people; an int is a fine float.
    if type(value) in allowed:
        return value
    if type(value) is int and float in allowed:
        return float(value)
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    raise ConfigError(f"{key} must be {' or '.join(names[item] for item in allowed)}, got {value!r}")


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            # A JSON string is one of TOML's, but for this one character.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    raise ConfigError(f"a setting must be text, a number, true or false, a list or a table, got {value!r}")
