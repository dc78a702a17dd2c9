"""The sections of an experiment: every setting has a default and a type."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pfge.lab.config.launcher import Launcher, parse_launcher
from pfge.methods import DEFAULT_METHODS, Setting, Variant
from pfge.tasks import Task
from pfge.tasks.manifest import KNOWN


class ConfigError(ValueError):
    """A setting that is unknown or has a wrong value; the message names it, the value and what is allowed."""


@dataclass(frozen=True)
class DataSettings:
    """The data, its splits and its batches."""

    name: str = "digits"
    root: str = ""  # "" is $PFGE_DATA, or ~/.cache/pfge
    download: bool = False
    validation: int | float = 0  # images, or a share, taken out of the training data
    halve_test: bool = False  # for a w0 that saw all training data: half of the test set is validation
    verify: bool = True  # whether published files must have their md5
    image_size: int = 0  # height and width of pictures from folders; 0 is 32 in memory and 224 streamed
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
    workers: int = 0  # processes that read what is not in memory: streamed pictures, a Dataset's items

    @property
    def root_folder(self) -> Path | None:
        """The folder that holds data sets, if one is given."""
        return Path(self.root).expanduser() if self.root else None


@dataclass(frozen=True)
class ModelSettings:
    """The architecture."""

    name: str = "small_conv"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSettings:
    """What the model's outputs and the targets mean."""

    name: str = ""  # classification, multilabel or regression; "" is the data set's own
    options: dict[str, Any] = field(default_factory=dict)  # such as dim and ignore_index, or noise

    def make(self) -> Task | None:
        """Return the task; None where the data set decides it.

        Raises:
            ConfigError: There is no such task, or it does not take the options.
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
    """Where w0 comes from: a file, or a model as it is built, trained by the paper's recipe of SGD."""

    weights: str = (
        ""  # a checkpoint of your own, not trained further unless its head does not fit; "" builds a model
    )
    options: dict[str, Any] = field(default_factory=dict)  # for building that model alone, as trained weights
    epochs: float = 20.0  # 0 takes the model as it is built
    optimizer: str = "sgd"  # or adamw, or a function of your own, package.module:name
    rate: float = 0.05
    momentum: float = 0.9  # of sgd
    weight_decay: float = 5e-4

    def iterations(self, per_epoch: int) -> int:
        """Return the number of updates of a training."""
        return max(round(self.epochs * per_epoch), 1)


@dataclass(frozen=True)
class EnsembleSettings:
    """The ensembling phase, which is the same for every method."""

    methods: tuple[str, ...] = DEFAULT_METHODS  # a star alone, as FGE*: only its last members are measured
    unit: Literal["epochs", "iterations"] = "epochs"  # of cycle, period and length
    cycle: float = 2.0
    period: float = 10.0
    length: float = 40.0
    low: float = 5e-4
    high: float = 0.05
    optimizer: str = "sgd"  # or adamw, or a function of your own, package.module:name
    momentum: float = 0.9  # of sgd
    weight_decay: float = 5e-4
    variant: Variant = "paper"
    average_start: Literal["variant", "yes", "no"] = "variant"
    clear_momentum: bool = True
    ema_decay: float = 0.999
    tail: float = 0.1  # share of an annealing, at its end, that Star and Cosine average

    def setting(self, per_epoch: int) -> Setting:
        """Return the setting in iterations."""
        scale = per_epoch if self.unit == "epochs" else 1
        cycle, period, length = (max(round(scale * x), 1) for x in (self.cycle, self.period, self.length))
        average_start = {"variant": None, "yes": True, "no": False}[self.average_start]
        return Setting(
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
    length: float = 5.0
    rate: float = 0.03  # constant for half of the length, then falls to a hundredth
    momentum: float = 0.9
    weight_decay: float = 5e-4  # of the point on the curve
    bends: int = 1
    points: int = 31  # where a curve is traced; the paper has 61
    images: int = 0  # training images that a traced point is measured and BatchNorm refreshed with; 0 is all

    def iterations(self, per_epoch: int) -> int:
        """Return the number of updates of a curve."""
        return max(round(self.length * (per_epoch if self.unit == "epochs" else 1)), 1)


@dataclass(frozen=True)
class MarginSettings:
    """Differences between methods that do not matter: within them, reports say that methods are equal."""

    points: float = 0.2  # percentage points, of accuracy and other shares
    nll: float = 0.01
    share: float = 0.01  # of the reference's value, for metrics that have a unit, as CRPS


@dataclass(frozen=True)
class EngineSettings:
    """The hardware and how it is used."""

    accelerator: str = "auto"
    devices: int | str = 1
    nodes: int = 1
    strategy: str = "auto"
    precision: Literal["32-true", "bf16-mixed", "bf16-true"] = "32-true"
    channels_last: bool = True
    compile: bool = False
    checkpoint_seconds: float = 60.0
    timeout: float = 600.0  # seconds in which a process must answer the others, or they end
    logger: str = ""  # of loss and rate: csv, tensorboard, or a function of your own, package.module:name
    launcher: str = "here"  # one part after another; here:N, ray, ray:HOST:PORT, slurm: docs/scale.md
    cpus: int = 1  # of each part, on ray and slurm; also its threads
    gpus: int = 0
    memory: float = 0.0  # in GB; 0 asks for none in particular
    slurm: dict[str, Any] = field(default_factory=dict)  # parameters of submitit, such as slurm_partition

    @property
    def chosen_launcher(self) -> Launcher:
        """Where the parts of the experiment run.

        Raises:
            ConfigError: There is no such launcher.
        """
        if (found := parse_launcher(self.launcher)) is None:
            raise ConfigError(
                "engine.launcher must be here, here:N for N processes, ray, ray:HOST:PORT, slurm or "
                f"slurm:local, got {self.launcher!r}"
            )
        return found
