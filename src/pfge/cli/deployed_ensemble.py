"""An ensemble opened by its manifest's own account of how it is used, without its training data."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pfge.cli.ensemble_arguments import load_experiment_of, open_session_of

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from pfge.ensemble import Ensemble
    from pfge.lab.config.schema import Experiment
    from pfge.lab.data import Normalization
    from pfge.lab.engine import Engine
    from pfge.storage.usage import Usage


@dataclass(frozen=True)
class DeployedEnsemble:
    """An ensemble, the engine it predicts on, and how its inputs are made.

    Attributes:
        ensemble: Its forward pass is the plain one, in float32.
        usage: Of its manifest, or of its run's data if the manifest has none.
        engine: The hardware.
        experiment: The settings of its run, or the given ones.
        example: A few inputs; numbers at random if the data is not there.
    """

    ensemble: "Ensemble"
    usage: "Usage"
    engine: "Engine"
    experiment: "Experiment"
    example: Any

    @property
    def normalization(self) -> "Normalization | None":
        """Of pictures; None for data of other kinds."""
        from pfge.lab.data import Normalization

        return Normalization(self.usage.mean, self.usage.std) if self.usage.mean and self.usage.std else None


def open_deployed(options: argparse.Namespace, examples: int) -> DeployedEnsemble:
    """Load an ensemble; its data is read only if the manifest does not say how inputs are made.

    Args:
        options: Of the command.
        examples: How many example inputs to make.

    Raises:
        StorageError: The ensemble is missing or damaged, or of another task than the config names.
    """
    from pfge.ensemble import Ensemble
    from pfge.lab.engine import Engine
    from pfge.lab.models import build_model
    from pfge.lab.session.ensemble_task import require_task

    path: Path = options.ensemble
    usage = _read_usage(path)
    if usage.outputs is None or usage.input_shape is None:
        session = open_session_of(options)
        ensemble = require_task(Ensemble.load(path, session.build_model), session.task, path)
        example = session.first_inputs(examples)
        return DeployedEnsemble(ensemble, session.usage, session.engine, session.experiment, example)
    experiment = load_experiment_of(options, reads_data=False)
    engine, outputs = Engine(experiment.engine), usage.outputs

    def build() -> "nn.Module":
        settings = experiment.model
        return engine.place(
            build_model(settings.name, classes=outputs, channels=usage.channels, **settings.options)
        )

    ensemble = Ensemble.load(path, build)
    task = experiment.task.make()
    if task is not None:
        require_task(ensemble, task, path)
    return DeployedEnsemble(ensemble, usage, engine, experiment, _draw(examples, usage.input_shape))


def _read_usage(path: "Path") -> "Usage":
    from pfge.storage.manifest import MANIFEST, read_manifest
    from pfge.storage.usage import Usage

    return Usage.from_manifest(path / MANIFEST, read_manifest(path).get("usage"))


def _draw(count: int, shape: tuple[int, ...]) -> "Tensor":
    """Return inputs that are as large as normalized ones."""
    import torch

    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))
