"""An ensemble as an ONNX file, for ONNX Runtime and others."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import torch

from pfge.ensemble import Ensemble
from pfge.export.ensemble_graph import Form
from pfge.export.example_inputs import Axes, ExampleInputs, double
from pfge.export.onnx_runtime import Answer, measure_forms, open_in_runtime, possible
from pfge.export.verified_file import Exported, ExportError, exporting, make_program, write_checked
from pfge.export.zero_biases import remove_zero_biases
from pfge.packed import PackedMembers
from pfge.tasks import Classification, MultiLabel, Regression
from pfge.tasks.manifest import task_to_manifest
from pfge.weights import count_bytes

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

LARGEST = 2**31 - 1
FORMS: tuple[Form, ...] = ("loop", "side by side")


def export_onnx(
    ensemble: Ensemble,
    path: str | Path,
    example: Any,
    *,
    axes: Axes | None = None,
    form: Form | Literal["fastest"] = "loop",
    memory: int | None = None,
) -> Exported:
    """Write an ensemble as one ONNX file that maps `inputs` [batch, ...] to `probabilities`.

    The inputs of a dict batch have its names.

    These are what the ensemble predicts, in float32; for numbers, means and variances, they are called
    `predictions`. Temperatures are applied, batches may have any size, and packed members stay packed in the
    file. The file's metadata has the task and what is given of the
    ensemble's `usage`, as JSON: `classes`, `mean`, `std`, `input_shape` and others.

    Args:
        ensemble: What to write.
        path: The file; one that was there is replaced.
        example: A batch as for `Ensemble.predict`, on which the file is checked in ONNX Runtime.
        axes: Dimensions that may vary beside the first, by the names of inputs, such as
            `{"input_ids": {1: "length"}}`. Inputs by place are called `inputs`, or `inputs_0`, `inputs_1`.

        form: "loop" for one model in the graph, through which members pass one after another, each unpacked
            when its turn comes; "side by side" for one model for each member, all of them unpacked when the
            file is opened. "fastest" makes both, measures them on the example, twice as large, and keeps the
            faster one, or the one that ONNX Runtime can run. A loop takes little memory, and ONNX Runtime is
            slow at loops around small models.
        memory: The most bytes that weights may take in memory; a form that takes more is not considered.

    Raises:
        ExportError: No form fits the memory, the model cannot be expressed, ONNX Runtime cannot run it or is
            too old for it, or the file answers otherwise than the ensemble; nothing is written.
    """
    if form not in (*FORMS, "fastest"):
        raise ValueError(f"form must be one of {', '.join(FORMS)} and fastest, got {form!r}")
    _require_packages()
    if ensemble.nbytes > LARGEST:
        raise ExportError(
            f"an ONNX file holds at most {LARGEST:,} bytes, and the members take {ensemble.nbytes:,}; "
            "compress the ensemble, or use the torch format"
        )
    ensemble = ensemble.to("cpu")
    inputs = ExampleInputs.of(ensemble, example, axes)
    if ensemble.usage.classes is not None:
        _require_names(ensemble, inputs, ensemble.usage.classes)
    resident = {
        one: bytes_ for one in FORMS if form in (one, "fastest") and (bytes_ := resident_bytes(ensemble, one))
    }
    fitting = [one for one, bytes_ in resident.items() if memory is None or bytes_ <= memory]
    if not fitting:
        least = min(resident, key=resident.__getitem__)
        raise ExportError(
            f"weights in memory must take at most {memory:,} bytes, got {resident[least]:,} of the form "
            f"{least!r}; allow more, compress the ensemble or leave members out"
        )
    made = possible(fitting, lambda one: _make(ensemble, inputs, one))
    seconds = _measure(made, inputs.map(double)) if len(made) > 1 else {}
    chosen = min(seconds or made, key=lambda one: seconds.get(one, 0.0))
    path = Path(path)
    exported = write_checked(ensemble, inputs, path, lambda file: made[chosen].save(file), open_in_runtime)
    return replace(exported, form=chosen, seconds=seconds, resident=resident)


def resident_bytes(ensemble: Ensemble, form: Form) -> int:
    """Return the bytes of weights that a runtime has in memory while a file of a form predicts."""
    one = count_bytes(ensemble.members[0])
    if form == "loop":
        return ensemble.nbytes + one
    members = ensemble.members
    if not isinstance(members, PackedMembers):
        return ensemble.nbytes
    same = [name for name, tensor in members.tensors.items() if not tensor.each]
    once = count_bytes({name: members[0][name] for name in same})
    return once + len(members) * (one - once)


def _make(ensemble: Ensemble, inputs: ExampleInputs, form: Form) -> "ONNXProgram":
    program = make_program(ensemble, inputs, form)
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
    remove_zero_biases(made.model)
    for graph in made.model.graphs():
        for node in graph:
            node.metadata_props.clear()  # where in the source each came from, larger than the weights
    about = {"task": task_to_manifest(ensemble.task) or task_to_manifest(Classification())}
    for key, value in (about | ensemble.usage.given()).items():
        made.model.metadata_props[key] = json.dumps(value)
    return made


def _measure(made: "Mapping[Form, ONNXProgram]", inputs: ExampleInputs) -> dict[Form, float]:
    """Return the seconds of each form that ONNX Runtime can run."""
    with TemporaryDirectory() as folder:

        def opened(form: Form) -> Answer:
            file = Path(folder) / f"{form}.onnx"
            made[form].save(file)
            answer = open_in_runtime(file)
            answer(inputs)  # warms up
            return answer

        return measure_forms(possible(made, opened), inputs)


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
