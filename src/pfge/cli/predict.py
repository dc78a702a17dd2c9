"""`pfge predict`: predict files with a saved ensemble."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfge.cli.arguments import WHERE_FROM, add_ensemble_arguments, load_experiment_of, open_session_of
from pfge.errors import InvalidValueError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pfge.ensemble import Ensemble
    from pfge.lab.config.settings import Experiment
    from pfge.lab.data import Normalization
    from pfge.lab.engine import Engine
    from pfge.storage.record import InputSpec


@dataclass(frozen=True)
class DeployedEnsemble:
    """An ensemble, the engine it predicts on, and how its inputs are made.

    Attributes:
        ensemble: Its forward pass is the plain one, in float32.
        input_spec: Of its manifest, or of its run's data if the manifest has none.
        engine: The hardware.
        experiment: The settings of its run, or the given ones.
        example: A few inputs; numbers at random if the data is not there.
    """

    ensemble: "Ensemble"
    input_spec: "InputSpec"
    engine: "Engine"
    experiment: "Experiment"
    example: Any

    @property
    def normalization(self) -> "Normalization | None":
        """Of pictures; None for data of other kinds."""
        from pfge.lab.data import Normalization

        spec = self.input_spec
        return Normalization(spec.mean, spec.std) if spec.mean and spec.std else None


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
    from pfge.lab.models.registry import require_fitting_members
    from pfge.lab.session import require_task
    from pfge.storage.ensemble_folder import read_record
    from pfge.storage.files import StorageError

    path: Path = options.ensemble
    spec = read_record(path).input_spec
    if spec.outputs is None or spec.input_shape is None:
        session = open_session_of(options)
        ensemble = require_task(Ensemble.load(path, session.build_model), session.task, path)
        example = session.first_inputs(examples)
        return DeployedEnsemble(ensemble, session.input_spec, session.engine, session.experiment, example)
    experiment = load_experiment_of(options, reads_data=False)
    engine, settings = Engine(experiment.engine), experiment.model
    sizes = {"classes": spec.outputs, "channels": spec.channels, **settings.options}

    def build() -> "nn.Module":
        return engine.place(build_model(settings.name, **sizes))

    ensemble = Ensemble.load(path, build)
    if len(ensemble):
        try:
            require_fitting_members(ensemble.members[0], settings.name, **sizes)
        except ValueError as error:
            raise StorageError(f"{path} does not fit the model {settings.name!r}: {error}") from None
    task = experiment.task.make()
    if task is not None:
        require_task(ensemble, task, path)
    return DeployedEnsemble(ensemble, spec, engine, experiment, _draw(examples, spec.input_shape))


def _draw(count: int, shape: tuple[int, ...]) -> "Tensor":
    """Return inputs that are as large as normalized ones."""
    import torch

    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))


HELP = "predict image files, or rows of a .npy file"
DESCRIPTION = f"""
Print what an ensemble predicts for each image, which is cropped and resized like the ensemble's test
images, or, for data that is not pictures, for each example of .npy files: the most probable classes, the
probability of each label, or mean and standard deviation of numbers. A file that cannot be read is
reported, and the others are predicted. {WHERE_FROM}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_ensemble_arguments(parser)
    parser.add_argument("images", type=Path, nargs="+", metavar="FILE", help="an image, or a .npy file")
    parser.add_argument(
        "--top",
        type=int,
        metavar="N",
        help="number of classes or labels to print, the most probable (default: 3 classes, all labels)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object per line")
    parser.add_argument(
        "--cascade",
        type=Path,
        metavar="FILE",
        help="evaluate members one after another, by a file of pfge cascade",
    )


def run(options: argparse.Namespace) -> int:
    """Print a line for each example; return 2 if one could not be read or predicted."""
    from pfge.cli.predictions import describe, explain
    from pfge.lab.data import DataError
    from pfge.reports.printable import printable, printable_json

    if options.top is not None and options.top < 1:
        raise InvalidValueError(f"--top must be at least 1, got {options.top}")
    deployed = open_deployed(options, 1)
    inputs, names, failed = [], [], 0
    for path in options.images:
        try:
            found = _read(deployed, path)
        except DataError as error:
            failed += 1
            _report(str(error))
            continue
        inputs += found
        names += [str(path)] if len(found) == 1 else [f"{path}[{index}]" for index in range(len(found))]
    for name, predictions in zip(names, _predict(deployed, options, inputs), strict=True):
        if not predictions.isfinite().all():
            failed += 1
            _report(f"{name} has no finite prediction; look for NaN and infinity in it")
            continue
        classes = deployed.input_spec.classes or ()
        described = describe(deployed.ensemble.task, predictions, classes, options.top)
        if options.json:
            print(printable_json({"file": name, **described}))
        else:
            print(printable(f"{name}: {explain(described)}"))
    return 2 if failed else 0


def _report(error: str) -> None:
    from pfge.reports.printable import printable

    print(f"pfge: error: {printable(error)}", file=sys.stderr)


def _read(deployed: "DeployedEnsemble", path: Path) -> "list[Tensor]":
    """Return the inputs in a file: one of a picture, or all examples of an array."""
    from pfge.lab.data.single_inputs import read_array_inputs, read_picture_inputs

    shape = deployed.input_spec.input_shape
    if shape is None:
        raise InvalidValueError(
            f"pfge predict reads pictures and arrays, but inputs of this data are "
            f"{type(deployed.example).__name__}; predict them in Python, by Ensemble.load"
        )
    if deployed.normalization is None:
        return list(read_array_inputs(path, shape))
    return [read_picture_inputs(path, deployed.normalization, shape, deployed.input_spec.resize)]


def _predict(
    deployed: "DeployedEnsemble", options: argparse.Namespace, inputs: "list[Tensor]"
) -> "list[Tensor]":
    """Return what is predicted for each example."""
    import torch

    from pfge.cascade import Cascade

    ensemble = deployed.ensemble.to(deployed.engine.device)
    ensemble.forward = deployed.engine.forward
    cascade = Cascade.load(options.cascade) if options.cascade else None
    if not inputs:
        return []
    size = deployed.experiment.data.evaluation_batch_size
    # The engine's forward pass takes pairs of inputs and labels.
    batches = [
        [torch.stack(inputs[at : at + size]).to(deployed.engine.device)] for at in range(0, len(inputs), size)
    ]
    if cascade:
        return list(cascade.predict_batches(ensemble, batches).probabilities.cpu())
    return list(ensemble.predict_batches(batches).cpu())
