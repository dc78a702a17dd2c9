"""The settings of an experiment: sections, defaults, types and checks."""

import dataclasses
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

from pfge.lab.config.launchers import LAUNCHER_USAGE, Launcher, parse_launcher
from pfge.lab.config.typed import FieldError, require_above_0, require_at_least_0, run_checks
from pfge.methods import DEFAULT_METHODS, METHODS, TrainingPlan, Variant, base_of, known_rows
from pfge.storage.files import LONGEST_FILE_NAME, MOST_MEMBERS, MOST_SEEDS, is_file_name
from pfge.tasks import KNOWN, Task

Positive = Annotated[float, require_above_0]
PositiveInt = Annotated[int, require_above_0]
NonNegative = Annotated[float, require_at_least_0]
NonNegativeInt = Annotated[int, require_at_least_0]


class ConfigError(FieldError):
    """A setting that is unknown or has a wrong value; the message names it, the value and what is allowed."""


def expand_user(path: str, setting: str) -> Path:
    """Return a path in which `~` and `~name` are replaced by the home folder.

    Args:
        path: The path as the user wrote it.
        setting: The setting that it comes from, for the error.

    Raises:
        ConfigError: The user does not exist, or the home folder is not known.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{setting} begins with ~, but that home folder is not known, got {path!r}; write the whole path"
        ) from None


@dataclass(frozen=True)
class DataSettings:
    """The data, its splits and its batches."""

    name: str = "digits"
    root: str = ""  # "" is $PFGE_DATA, or ~/.cache/pfge
    download: bool = False
    validation: Annotated[int | float, require_at_least_0] = 0  # examples, or a share, of the training data
    validation_from_test: bool = (
        False  # for a w0 that saw all training data: half of the test set is validation
    )
    verify: bool = True  # whether published files must have their md5
    # Height and width of pictures from folders; 0 is 32 in memory and 224 streamed.
    image_size: NonNegativeInt = 0
    split_seed: int = 0
    train_images: NonNegativeInt = 0  # how many of those left for training; 0 is all
    test_images: NonNegativeInt = 0  # how many of the test set, or of each half; 0 is all
    batch_size: PositiveInt = 50
    evaluation_batch_size: PositiveInt = 500
    crop_padding: NonNegativeInt = 0
    flip: bool = False
    mean: tuple[float, ...] = ()  # () is the data set's own
    std: tuple[float, ...] = ()
    batch_norm_images: NonNegativeInt = 0  # images that BatchNorm is refreshed with; 0 is all training images
    # Processes that read what is not in memory: streamed pictures, a Dataset's items.
    workers: NonNegativeInt = 0

    @property
    def root_folder(self) -> Path | None:
        """The folder that holds data sets, if one is given."""
        return expand_user(self.root, "data.root") if self.root else None


@dataclass(frozen=True)
class ModelSettings:
    """The architecture."""

    name: str = "small_conv"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSettings:
    """Meaning of the model's outputs and of the targets."""

    name: str = ""  # classification, multilabel or regression; "" is the data set's own
    options: dict[str, Any] = field(default_factory=dict)  # such as dim and ignore_index, or noise

    def make(self) -> Task | None:
        """Return the task; None where the data set decides it.

        Raises:
            ConfigError: The task is unknown or does not take the options.
        """
        if not self.name:
            if self.options:
                raise ConfigError(f"task.options need a task.name that takes them, got {self.options}")
            return None
        known = {name.lower(): task for name, task in KNOWN.items()}
        kind = known.get(self.name.lower())
        if kind is None:
            raise ConfigError(f"task.name must be one of {', '.join(known)}, got {self.name!r}")
        allowed = [item.name for item in dataclasses.fields(kind)]  # type: ignore[arg-type]
        for name in self.options:
            if name not in allowed:
                names = ", ".join(allowed) or "none"
                raise ConfigError(f"task.options of {self.name} are {names}, got {name!r}")
        try:
            return kind(**self.options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"task.options of {self.name}: {error}") from None


@dataclass(frozen=True)
class PretrainSettings:
    """Source of w0: a file, or a new model that is trained by the paper's SGD recipe."""

    # A checkpoint of your own, not trained further unless its head does not fit; "" builds a model.
    weights: str = ""
    options: dict[str, Any] = field(default_factory=dict)  # for building that model alone, as trained weights
    epochs: NonNegative = 20.0  # 0 takes the model as it is built
    optimizer: str = "sgd"  # or adamw, or a function of your own, package.module:name
    rate: NonNegative = 0.05
    momentum: NonNegative = 0.9  # of sgd
    weight_decay: NonNegative = 5e-4

    def iterations(self, per_epoch: int) -> int:
        """Return the number of updates of a training."""
        return max(round(self.epochs * per_epoch), 1)


@dataclass(frozen=True)
class EnsembleSettings:
    """The ensembling phase, which is the same for every method."""

    methods: tuple[str, ...] = DEFAULT_METHODS  # a star alone, as FGE*: only its last members are measured
    unit: Literal["epochs", "iterations"] = "epochs"  # of cycle, period and length
    cycle: Positive = 2.0
    period: Positive = 10.0
    length: Positive = 40.0
    low: float = 5e-4
    high: float = 0.05
    optimizer: str = "sgd"  # or adamw, or a function of your own, package.module:name
    momentum: NonNegative = 0.9  # of sgd
    weight_decay: NonNegative = 5e-4
    variant: Variant = "paper"
    average_start: Literal["variant", "yes", "no"] = "variant"
    clear_momentum: bool = True
    ema_decay: float = 0.999
    tail: float = 0.1  # share of an annealing, at its end, that Star and Cosine average

    def setting(self, per_epoch: int) -> TrainingPlan:
        """Return the setting in iterations."""
        scale = per_epoch if self.unit == "epochs" else 1
        cycle, period, length = (max(round(scale * x), 1) for x in (self.cycle, self.period, self.length))
        average_start = {"variant": None, "yes": True, "no": False}[self.average_start]
        return TrainingPlan(
            iterations=length,
            cycle=cycle,
            period=period,
            low=self.low,
            high=self.high,
            variant=self.variant,
            average_start=average_start,
            clear_momentum=self.clear_momentum,
            ema_decay=self.ema_decay,
            tail=self.tail,
        )


@dataclass(frozen=True)
class ConnectSettings:
    """How curves between members are fitted and traced."""

    unit: Literal["epochs", "iterations"] = "epochs"  # of length
    length: Positive = 5.0
    rate: Positive = 0.03  # constant for half of the length, then falls to a hundredth
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 5e-4  # of the point on the curve
    bends: PositiveInt = 1
    points: int = 31  # where a curve is traced; the paper has 61
    # Training images that a traced point is measured and BatchNorm refreshed with; 0 is all.
    images: NonNegativeInt = 0

    def iterations(self, per_epoch: int) -> int:
        """Return the number of updates of a curve."""
        return max(round(self.length * (per_epoch if self.unit == "epochs" else 1)), 1)


@dataclass(frozen=True)
class MarginSettings:
    """Differences that do not matter: reports call methods equal whose difference lies within the margin."""

    points: Positive = 0.2  # percentage points, of accuracy and other shares
    nll: Positive = 0.01
    share: Positive = 0.01  # of the reference's value, for metrics that have a unit, as CRPS


@dataclass(frozen=True)
class EngineSettings:
    """Hardware, launcher and loggers."""

    accelerator: str = "auto"
    devices: int | str = 1
    nodes: int = 1
    strategy: str = "auto"
    precision: Literal["32-true", "bf16-mixed", "bf16-true"] = "32-true"
    channels_last: bool = True
    compile: bool = False
    checkpoint_seconds: NonNegative = 60.0
    timeout: Positive = 600.0  # seconds in which a process must answer the others, or they end
    logger: str = ""  # of loss and rate: csv, tensorboard, or a function of your own, package.module:name
    launcher: str = "here"  # one part after another; here:N, ray, ray:HOST:PORT, slurm: docs/scale.md
    cpus: PositiveInt = 1  # of each part, on ray and slurm; also its threads
    gpus: NonNegativeInt = 0
    memory: NonNegative = 0.0  # in GB; 0 asks for none in particular
    slurm: dict[str, Any] = field(default_factory=dict)  # parameters of submitit, such as slurm_partition

    @property
    def chosen_launcher(self) -> Launcher:
        """Where the parts of the experiment run.

        Raises:
            ConfigError: The launcher is unknown.
        """
        if (found := parse_launcher(self.launcher)) is None:
            raise ConfigError(f"engine.launcher must be one of {LAUNCHER_USAGE}, got {self.launcher!r}")
        return found


def require_valid(experiment: "Experiment", values: dict[str, Any]) -> None:
    """Raise a ConfigError unless an experiment's settings, and `values` of them by key, are allowed."""
    ensemble, data = experiment.ensemble, experiment.data
    if not is_file_name(experiment.name):
        raise ConfigError(
            f"name must be that of a folder: at most {LONGEST_FILE_NAME} bytes, printable, and without "
            f"slashes, colons and a leading dot, got {ascii(experiment.name)[:60]}"
        )
    try:
        run_checks(experiment)
    except FieldError as error:
        raise ConfigError(str(error)) from None
    if not 0 <= ensemble.low <= ensemble.high < inf:
        raise ConfigError(
            f"ensemble.low and ensemble.high must satisfy 0 <= low <= high and be finite, "
            f"got {ensemble.low} and {ensemble.high}"
        )
    if ensemble.length < ensemble.period or ensemble.period < ensemble.cycle:
        raise ConfigError(
            f"ensemble must have cycle <= period <= length, got {ensemble.cycle}, "
            f"{ensemble.period} and {ensemble.length}"
        )
    if ensemble.length > MOST_MEMBERS * ensemble.period:
        raise ConfigError(
            f"ensemble.length must be at most {MOST_MEMBERS:,} periods, got {ensemble.length} with a period "
            f"of {ensemble.period}"
        )
    _require_valid_methods(experiment)
    experiment.task.make()
    _ = experiment.engine.chosen_launcher
    for key in ("pretrain.optimizer", "ensemble.optimizer"):
        if values[key] not in ("sgd", "adamw") and ":" not in values[key]:
            raise ConfigError(
                f"{key} must be sgd, adamw or a function, package.module:name, got {values[key]!r}"
            )
    if experiment.connect.points < 2:
        raise ConfigError(f"connect.points must be at least 2, the ends, got {experiment.connect.points}")
    if not 0 <= ensemble.ema_decay < 1:
        raise ConfigError(f"ensemble.ema_decay must be at least 0 and below 1, got {ensemble.ema_decay}")
    if not 0 <= ensemble.tail <= 1:
        raise ConfigError(f"ensemble.tail must be a share of an annealing, from 0 to 1, got {ensemble.tail}")
    if not experiment.seeds or len(set(experiment.seeds)) != len(experiment.seeds):
        raise ConfigError(f"seeds must be one or more different numbers, got {list(experiment.seeds)}")
    if len(experiment.seeds) > MOST_SEEDS:
        raise ConfigError(f"seeds must be at most {MOST_SEEDS:,}, got {len(experiment.seeds):,}")
    for key in ("model.options", "pretrain.options"):
        if taken := sorted({"name", "classes", "channels"} & values[key].keys()):
            raise ConfigError(f"{key} must leave {taken[0]} out, which model.name and the data decide")
    if len(data.mean) != len(data.std):
        raise ConfigError(f"data.mean and data.std go together, got {data.mean} and {data.std}")


def _require_valid_methods(experiment: "Experiment") -> None:
    ensemble, data, pretrain = experiment.ensemble, experiment.data, experiment.pretrain
    allowed = known_rows()
    unknown = [name for name in ensemble.methods if name not in allowed]
    if unknown:
        raise ConfigError(f"ensemble.methods must be among {', '.join(allowed)}, got {unknown[0]!r}")
    for method in (METHODS[base_of(name)] for name in ensemble.methods):
        if ensemble.length < method.least_cycles * ensemble.cycle:
            raise ConfigError(
                f"ensemble.length must be at least {method.least_cycles} cycles, as {method.name} needs "
                f"a point of each, got {ensemble.length} with a cycle of {ensemble.cycle}; or "
                "leave it out of ensemble.methods"
            )
        if method.base and method.base not in ensemble.methods:
            raise ConfigError(
                f"{method.name} uses the model of {method.base}, so ensemble.methods must have both, got "
                f"{', '.join(ensemble.methods)}; add {method.base}"
            )
        if method.path == "augmented" and not (data.flip or data.crop_padding):
            raise ConfigError(
                f"{method.name} shifts and mirrors pictures as in training, so data.crop_padding must be "
                "above 0 or data.flip true, got 0 and false; set one, or leave it out of ensemble.methods"
            )
        if method.path == "trainings" and (pretrain.weights or not pretrain.epochs):
            raise ConfigError(
                f"{method.name} trains every member from its own start, so pretrain.weights must be "
                f"empty and pretrain.epochs above 0, got pretrain.weights = {pretrain.weights!r}, "
                f"pretrain.epochs = {pretrain.epochs:g}; or leave it out of ensemble.methods"
            )


@dataclass(frozen=True)
class Experiment:
    """A whole comparison."""

    name: str = "digits"
    seeds: tuple[int, ...] = (1, 2, 3)
    data: DataSettings = field(default_factory=DataSettings)
    task: TaskSettings = field(default_factory=TaskSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    pretrain: PretrainSettings = field(default_factory=PretrainSettings)
    ensemble: EnsembleSettings = field(default_factory=EnsembleSettings)
    connect: ConnectSettings = field(default_factory=ConnectSettings)
    margins: MarginSettings = field(default_factory=MarginSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        require_valid(self, flatten(self))

    def on_one_device(self) -> "Experiment":
        """Return the same experiment for one process, regardless of the processes that trained it."""
        return replace(self, engine=replace(self.engine, devices=1, nodes=1, strategy="auto"))


def flatten(experiment: Experiment) -> dict[str, Any]:
    """Return every setting by its key, such as `ensemble.high`."""
    flat: dict[str, Any] = {}
    for name, value in dataclasses.asdict(experiment).items():
        entries = (
            {f"{name}.{key}": item for key, item in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
        flat |= entries
    return flat
