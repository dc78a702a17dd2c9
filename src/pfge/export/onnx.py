"""An ensemble as an ONNX file, for ONNX Runtime and others."""

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfge.ensemble import Ensemble
from pfge.export.example_inputs import Axes, ExampleInputs
from pfge.export.verified_file import Exported, ExportError, exporting, make_program, write_checked
from pfge.tasks import Classification, MultiLabel, Regression
from pfge.tasks.manifest import task_to_manifest

LARGEST = 2**31 - 1


def export_onnx(ensemble: Ensemble, path: str | Path, example: Any, *, axes: Axes | None = None) -> Exported:
    """Write an ensemble as one ONNX file that maps `inputs` [batch, ...] to `probabilities`.

    The inputs of a dict batch have its names.

    These are what the ensemble predicts, in float32; for numbers, means and variances, they are called
    `predictions`. Temperatures are applied, batches may have any size, and packed members stay packed: one
    at a time is unpacked when the file predicts. The file's metadata has the task and what is given of the
    ensemble's `usage`, as JSON: `classes`, `mean`, `std`, `input_shape` and others.

    Args:
        ensemble: What to write.
        path: The file; one that was there is replaced.
        example: A batch as for `Ensemble.predict`, on which the file is checked in ONNX Runtime.
        axes: Dimensions that may vary beside the first, by the names of inputs, such as
            `{"input_ids": {1: "length"}}`. Inputs by place are called `inputs`, or `inputs_0`, `inputs_1`.

    Raises:
        ExportError: The model cannot be expressed, or the file answers otherwise than the ensemble;
            nothing is written.
    """
    _require_packages()
    if ensemble.nbytes > LARGEST:
        raise ExportError(
            f"an ONNX file holds at most {LARGEST:,} bytes, and the members take {ensemble.nbytes:,}; "
            "compress the ensemble, or use the torch format"
        )
    ensemble = ensemble.to("cpu")
    inputs = ExampleInputs.of(ensemble, example, axes)
    program = make_program(ensemble, inputs)
    if ensemble.usage.classes is not None:
        _require_names(ensemble, inputs, ensemble.usage.classes)
    output = "predictions" if isinstance(ensemble.task, Regression) else "probabilities"
    with exporting("ONNX"):
        # Without optimization: it would unpack what all members share. A runtime does its own.
        made = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            optimize=False,
            input_names=list(inputs.named()),
            dynamic_shapes=inputs.dynamic_shapes(),  # for the names of dimensions
            output_names=[output],
        )
    if made is None:
        raise ExportError("the model cannot be written as ONNX: torch.onnx.export returned nothing")
    for graph in made.model.graphs():
        for node in graph:
            node.metadata_props.clear()  # where in the source each came from, larger than the weights
    about = {"task": task_to_manifest(ensemble.task) or task_to_manifest(Classification())}
    for key, value in (about | ensemble.usage.given()).items():
        made.model.metadata_props[key] = json.dumps(value)
    return write_checked(ensemble, inputs, Path(path), lambda file: made.save(file), _read)


def _require_names(ensemble: Ensemble, example: ExampleInputs, classes: Sequence[str]) -> None:
    task, shape = ensemble.task, ensemble.predict(example.batch()).shape
    if not isinstance(task, Classification | MultiLabel):
        raise ValueError(f"classes name classes or labels, which {task} does not have; leave classes out")
    found = shape[task.dim if isinstance(task, Classification) else 1]
    if len(classes) != found:
        raise ValueError(f"classes must name each of the model's {found} classes, got {len(classes)} names")


def _require_packages() -> None:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        if find_spec(package) is None:
            raise ExportError(f'ONNX files need {package}; install it with pip install "pfge[export]"')


def _read(file: Path) -> Callable[[ExampleInputs], Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors; it warns of its own clean-up
    with exporting("ONNX that ONNX Runtime can read"):
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def answer(inputs: ExampleInputs) -> Tensor:
        fed = {name: tensor.numpy() for name, tensor in inputs.named().items()}
        return torch.from_numpy(session.run(None, fed)[0])

    return answer
