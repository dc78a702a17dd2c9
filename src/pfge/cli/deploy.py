"""Export a saved ensemble to other runtimes, and predict files with it: export, predict."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfge.cli.arguments import (
    add_ensemble_arguments,
    command,
    load_experiment_of,
    members_in_words,
    open_session_of,
    parse_bytes,
    require_writable_file,
)
from pfge.errors import InvalidValueError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pfge.ensemble import Ensemble
    from pfge.lab.config.settings import Experiment
    from pfge.lab.data import Normalization
    from pfge.lab.engine import Engine
    from pfge.storage.record import InputSpec
    from pfge.tasks import Task


EXAMPLES = 4
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    add_ensemble_arguments(parser)
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write, such as ensemble.onnx")
    parser.add_argument(
        "--format",
        choices=("onnx", "torch"),
        default="onnx",
        help="onnx (default), or torch for a .pt2 file of torch.export",
    )
    parser.add_argument(
        "--layout",
        choices=("loop", "side-by-side", "fastest"),
        help="layout of an ONNX file: loop (default) unpacks one member at a time, side-by-side unpacks all "
        "when the file is opened and takes more memory, fastest measures both",
    )
    parser.add_argument(
        "--memory",
        type=parse_bytes,
        metavar="BYTES",
        help="largest number of bytes that the weights of an ONNX file may take in memory, such as 20MB",
    )


@command("write an ensemble as one file for ONNX Runtime or torch.export", _add_export_arguments)
def export(options: argparse.Namespace) -> int:
    """Write the whole ensemble as one file that maps normalized images to probabilities.

    The file includes the temperatures and accepts batches of any size. Packed members stay packed. The file
    gets its name only after its predictions were compared with PyTorch's.
    """
    from pfge.export import export_onnx, export_torch
    from pfge.lab.run.progress import Reporter
    from pfge.tasks import Raw, Regression
    from pfge.weights import count_bytes

    if options.format == "torch" and (options.layout or options.memory):
        raise InvalidValueError(
            "--layout and --memory need --format onnx, got --format torch; leave them out"
        )
    _require_file(options.out, options.format)  # before the long work starts
    deployed = open_deployed(options, EXAMPLES)
    ensemble = deployed.ensemble.with_record(input_spec=deployed.input_spec)
    example = deployed.example
    members = members_in_words(ensemble)
    Reporter().say(f"{options.ensemble}: exporting {members}, then comparing the file with PyTorch")
    batch = [example] if isinstance(example, tuple) else example  # the model takes the entries of a tuple
    if options.format == "onnx":
        layout: Any = (options.layout or "loop").replace("-", " ")
        exported = export_onnx(ensemble, options.out, batch, layout=layout, memory=options.memory)
    else:
        exported = export_torch(ensemble, options.out, batch)
    weights = "packed" if exported.packed else "as they are"
    kinds: dict[type, str] = {Regression: "means and variances", Raw: "outputs"}
    predicted = kinds.get(type(ensemble.task), "probabilities")
    print(
        f"{exported.path}: {members}, {exported.bytes:,} bytes, weights {weights}, "
        f"{predicted} within "
        f"{exported.largest_difference:.1g} of PyTorch's; "
        f"inputs {_shape(example)}, {_normalization(deployed.normalization)}"
    )
    for layout, resident in exported.resident.items():
        took = f", {1000 * seconds:.3g} ms a batch" if (seconds := exported.seconds.get(layout)) else ""
        chosen = " (chosen)" if layout == exported.layout else ""
        print(f"{layout}{chosen}: {resident:,} bytes of weights in memory{took}")
    if exported.packed and exported.bytes > (one := count_bytes(ensemble.members[0])):
        print(
            f"The file is larger than one unpacked member ({one:,} bytes): for so small a model, the graph "
            "that unpacks takes more than packing saves. Without compression, the ensemble predicts faster."
        )
    return 0


def _require_file(out: Path, written: str) -> None:
    """Refuse a file that cannot be written, or that has the suffix of the other format."""
    require_writable_file(out, "OUT")
    for other, suffix in SUFFIXES.items():
        if other != written and out.suffix.lower() == suffix:
            raise InvalidValueError(
                f"OUT must not end in {suffix} with --format {written}, got {out}; give --format {other}, or "
                f"a name that ends in {SUFFIXES[written]}"
            )


def _shape(example: "Tensor | dict[str, Tensor] | tuple[Tensor, ...]") -> str:
    match example:
        case dict():
            return ", ".join(f"{name} {_shape(tensor)}" for name, tensor in example.items())
        case tuple():
            return ", ".join(map(_shape, example))
    return f"[{', '.join(['N', *map(str, example.shape[1:])])}]"


def _normalization(normalization: "Normalization | None") -> str:
    if normalization is None:
        return "as the data set has them"
    mean, std = (
        "[" + ", ".join(f"{value:.4g}" for value in values) + "]"
        for values in (normalization.mean, normalization.std)
    )
    return f"(pixels / 255 - {mean}) / {std}"


@dataclass(frozen=True)
class DeployedEnsemble:
    """An ensemble, the engine it predicts on, and how to make its inputs.

    Attributes:
        ensemble: The ensemble, with the plain forward pass in float32.
        input_spec: Input specification of the manifest; from the run's data if the manifest lacks it.
        engine: The hardware.
        experiment: Settings of the ensemble's run, or the settings given as arguments.
        example: A few inputs; random numbers if the data is missing.
    """

    ensemble: "Ensemble"
    input_spec: "InputSpec"
    engine: "Engine"
    experiment: "Experiment"
    example: Any

    @property
    def normalization(self) -> "Normalization | None":
        """Normalization of images; None for data of other kinds."""
        from pfge.lab.data import Normalization

        spec = self.input_spec
        return Normalization(spec.mean, spec.std) if spec.mean and spec.std else None


def open_deployed(options: argparse.Namespace, examples: int) -> DeployedEnsemble:
    """Load an ensemble. Its data is read only if the manifest lacks the input specification.

    Args:
        options: Parsed arguments of the command.
        examples: How many example inputs to make.

    Raises:
        StorageError: The ensemble is missing or damaged, or its task differs from the config's.
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
    """Return random inputs of the size of normalized inputs."""
    import torch

    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))


def _add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    add_ensemble_arguments(parser)
    parser.add_argument("images", type=Path, nargs="+", metavar="FILE", help="an image, or a .npy file")
    parser.add_argument(
        "--top",
        type=int,
        metavar="N",
        help="print the N most probable classes or labels (default: 3 classes, all labels)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object per line")
    parser.add_argument(
        "--cascade",
        type=Path,
        metavar="FILE",
        help="evaluate members one after another, by a file of pfge cascade",
    )


@command("predict image files, or rows of a .npy file", _add_predict_arguments)
def predict(options: argparse.Namespace) -> int:
    """Print what an ensemble predicts for each image file or each example of .npy files.

    Images are cropped and resized like the ensemble's test images. Depending on the task, prints the most
    probable classes, the probability of each label, or mean and standard deviation of numbers. A file that
    cannot be read is reported, and the others are predicted; the exit code is then 2.
    """
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
    for name, predictions in zip(names, _predict_inputs(deployed, options, inputs), strict=True):
        if not predictions.isfinite().all():
            failed += 1
            _report(f"{name} gives a prediction that is not finite; look for NaN and infinity in the file")
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
    """Return the inputs in a file: one for an image, or all examples of an array."""
    from pfge.lab.data.single_inputs import read_array_inputs, read_picture_inputs

    shape = deployed.input_spec.input_shape
    if shape is None:
        raise InvalidValueError(
            f"pfge predict reads images and arrays, but inputs of this data are "
            f"{type(deployed.example).__name__}; use Ensemble.load in Python instead"
        )
    if deployed.normalization is None:
        return list(read_array_inputs(path, shape))
    return [read_picture_inputs(path, deployed.normalization, shape, deployed.input_spec.resize)]


def _predict_inputs(
    deployed: "DeployedEnsemble", options: argparse.Namespace, inputs: "list[Tensor]"
) -> "list[Tensor]":
    """Return the prediction of each example."""
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


CLASSES = 3
"""Number of classes printed by default."""


def describe(task: "Task", predictions: "Tensor", names: Sequence[str], top: int | None) -> dict[str, Any]:
    """Return one example's prediction as JSON: classes, labels, mean and standard deviation, or outputs.

    Args:
        task: Task of the ensemble.
        predictions: Prediction of the example, without the dimension of examples.
        names: Names of the classes or labels. If empty, they are numbered from 0.
        top: Number of classes or labels, the most probable first; None for 3 classes, or all labels in order.
    """
    from pfge.tasks import MultiLabel, Raw, Regression
    from pfge.tasks.classification import require_one_class

    if isinstance(task, Regression):
        mean, variance = predictions.double().unbind(-1)
        return {"mean": mean.tolist(), "standard_deviation": variance.sqrt().tolist()}
    if isinstance(task, Raw):
        return {"outputs": predictions.tolist()}
    require_one_class(predictions[None], "pfge predict")
    named = names or [str(number) for number in range(len(predictions))]
    if isinstance(task, MultiLabel) and top is None:
        return {"labels": dict(zip(named, predictions.tolist(), strict=True))}
    best = predictions.topk(min(top or CLASSES, len(named)))
    found = {named[c]: p for p, c in zip(best.values.tolist(), best.indices.tolist(), strict=True)}
    return {"labels" if isinstance(task, MultiLabel) else "classes": found}


def explain(described: dict[str, Any]) -> str:
    """Return the result of `describe` as readable text."""
    match described:
        case {"mean": means, "standard_deviation": deviations}:
            return ", ".join(f"{m:.4g} ± {s:.2g}" for m, s in zip(means, deviations, strict=True))
        case {"outputs": outputs}:
            return str(outputs)
    (found,) = described.values()
    return ", ".join(f"{name} {100 * p:.1f} %" for name, p in found.items())
