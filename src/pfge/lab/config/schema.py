"""An experiment: its sections, checked together."""

import dataclasses
from dataclasses import dataclass, field, replace
from typing import Any

from pfge.lab.config.checks import require_valid
from pfge.lab.config.settings import (
    ConfigError,
    ConnectSettings,
    DataSettings,
    EngineSettings,
    EnsembleSettings,
    MarginSettings,
    ModelSettings,
    PretrainSettings,
    TaskSettings,
)

__all__ = [
    "ConfigError",
    "ConnectSettings",
    "DataSettings",
    "EngineSettings",
    "EnsembleSettings",
    "Experiment",
    "MarginSettings",
    "ModelSettings",
    "PretrainSettings",
    "TaskSettings",
    "flatten",
]


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
