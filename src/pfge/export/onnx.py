"""Export an ensemble to ONNX."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy
import torch
from torch import Tensor

from pfge.ensemble import Ensemble
from pfge.errors import InvalidValueError
from pfge.export.ensemble_graph import (
    Axes,
    ExampleInputs,
    Exported,
    ExportError,
    Layout,
    double,
    exporting,
    make_program,
    write_checked,
)
from pfge.storage.ensemble_folder import as_members
from pfge.tasks import Classification, MultiLabel, task_to_manifest
from pfge.weights import count_bytes

if TYPE_CHECKING:
    import onnx_ir
    from torch.onnx import ONNXProgram

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_BIAS = 2  # index of the bias among the inputs


def remove_zero_biases(model: "onnx_ir.Model") -> int:
    """Remove zero biases of convolutions and nodes that only these needed, in place; return their number."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    removed = 0
    for graph in model.graphs():
        for node in graph:
            if node.op_type in _CONVOLUTIONS and len(node.inputs) > _BIAS and _is_zero(node.inputs[_BIAS]):
                node.replace_input_with(_BIAS, None)
                node.resize_inputs(_BIAS)
                removed += 1
    if removed:
        RemoveUnusedNodesPass()(model)
    return removed


def _is_zero(bias: "onnx_ir.Value | None") -> bool:
    """Return whether a value is a constant of zero in another type and shape."""
    producer = None if bias is None else bias.producer()
    while producer is not None and producer.op_type in ("Expand", "CastLike", "Cast"):
        bias = producer.inputs[0]
        producer = None if bias is None else bias.producer()
    if producer is None or producer.op_type != "Constant" or "value" not in producer.attributes:
        return False
    return not numpy.any(producer.attributes["value"].as_tensor().numpy())


Answer = Callable[[ExampleInputs], Tensor]
ROUNDS = 5
_TOO_OLD = re.compile(r"Unsupported model IR version: .*|Current official support for domain .*")
_T = TypeVar("_T")


def open_in_runtime(file: Path) -> Answer:
    """Return a function from inputs to the predictions of a file.

    Raises:
        ExportError: ONNX Runtime cannot read or run the file, or is older than it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # only fatal messages; errors are raised as well
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises private types
        raise _refusal(onnxruntime.__version__, "read", error) from error

    def answer(inputs: ExampleInputs) -> Tensor:
        fed = {name: tensor.numpy() for name, tensor in inputs.named().items()}
        try:
            return torch.from_numpy(session.run(None, fed)[0])
        except Exception as error:
            raise _refusal(onnxruntime.__version__, "run", error) from error

    return answer


def _refusal(version: str, what: str, error: Exception) -> ExportError:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if older := _TOO_OLD.search(reason):
        return ExportError(
            f"ONNX Runtime {version} is older than the file: {older[0].rstrip('.')}; "
            "update it with pip install --upgrade onnxruntime"
        )
    return ExportError(
        f"the model cannot be written as ONNX that ONNX Runtime can {what}: {reason}; use another layout or "
        f"the torch format, or update ONNX Runtime, which has version {version}"
    )


def possible(layouts: Iterable[Layout], act: Callable[[Layout], _T]) -> dict[Layout, _T]:
    """Return the result of `act` for each layout, without the refused ones.

    Raises:
        ExportError: All layouts are refused; the message has the reason of the first.
    """
    made: dict[Layout, _T] = {}
    refusals: list[ExportError] = []
    for layout in layouts:
        try:
            made[layout] = act(layout)
        except ExportError as error:
            refusals.append(error)
    if not made:
        raise refusals[0]
    return made


def measure_layouts(answers: Mapping[Layout, Answer], inputs: ExampleInputs) -> dict[Layout, float]:
    """Return the least seconds of each layout, measured in turns so that a change of speed affects both."""
    seconds: dict[Layout, float] = dict.fromkeys(answers, inf)
    for _ in range(ROUNDS):
        for layout, answer in answers.items():
            start = perf_counter()
            answer(inputs)
            seconds[layout] = min(seconds[layout], perf_counter() - start)
    return seconds


LARGEST = 2**31 - 1
LAYOUTS: tuple[Layout, ...] = ("loop", "side by side")


def export_onnx(
    ensemble: Ensemble,
    path: str | Path,
    example: Any,
    *,
    axes: Axes | None = None,
    layout: Layout | Literal["fastest"] = "loop",
    memory: int | None = None,
) -> Exported:
    """Write an ensemble as one ONNX file that maps `inputs` [batch, ...] to `probabilities`.

    The inputs of a dict batch have its names.

    The output has the ensemble's predictions in float32. For regressions and raw outputs it is called
    `predictions`. Temperatures are applied, batches may have any size, and packed members stay packed in the
    file. The file's metadata has the task and what is given of the
    ensemble's `input_spec`, as JSON: `classes`, `mean`, `std`, `input_shape` and others.

    Args:
        ensemble: The ensemble to export.
        path: The file, which is replaced if it exists.
        example: A batch as for `Ensemble.predict`, to check the file in ONNX Runtime.
        axes: Dimensions that may vary in addition to the first, by the names of inputs, such as
            `{"input_ids": {1: "length"}}`. Positional inputs are named `inputs`, or `inputs_0`, `inputs_1`.
        layout: "loop" for one model in the graph, through which members pass one after another, each unpacked
            when its turn comes; "side by side" for one model for each member, all of them unpacked when the
            file is opened. "fastest" makes both, measures them on the example, twice as large, and keeps the
            faster one, or the one that ONNX Runtime can run. A loop takes little memory, and ONNX Runtime is
            slow at loops around small models.
        memory: Maximum bytes of weights in memory; a layout that takes more is not considered.

    Raises:
        ExportError: No layout fits the memory, the model cannot be expressed, ONNX Runtime cannot run it or
            is too old for it, or the file's answers differ from the ensemble's. Nothing is written.
    """
    if layout not in (*LAYOUTS, "fastest"):
        raise InvalidValueError(f"layout must be one of {', '.join(LAYOUTS)} and fastest, got {layout!r}")
    _require_packages()
    if ensemble.nbytes > LARGEST:
        raise ExportError(
            f"an ONNX file holds at most {LARGEST:,} bytes, and the members take {ensemble.nbytes:,}; "
            "compress the ensemble, or use the torch format"
        )
    ensemble = ensemble.to("cpu")
    inputs = ExampleInputs.of(ensemble, example, axes)
    if ensemble.input_spec.classes is not None:
        _require_names(ensemble, inputs, ensemble.input_spec.classes)
    resident = {
        one: bytes_
        for one in LAYOUTS
        if layout in (one, "fastest") and (bytes_ := resident_bytes(ensemble, one))
    }
    fitting = [one for one, bytes_ in resident.items() if memory is None or bytes_ <= memory]
    if not fitting:
        least = min(resident, key=resident.__getitem__)
        raise ExportError(
            f"weights in memory must take at most {memory:,} bytes, got {resident[least]:,} of the layout "
            f"{least!r}; allow more, compress the ensemble or leave members out"
        )
    made = possible(fitting, lambda one: _make(ensemble, inputs, one))
    seconds = _measure(made, inputs.map(double)) if len(made) > 1 else {}
    chosen = min(seconds or made, key=lambda one: seconds.get(one, 0.0))
    path = Path(path)
    exported = write_checked(ensemble, inputs, path, lambda file: made[chosen].save(file), open_in_runtime)
    return replace(exported, layout=chosen, seconds=seconds, resident=resident)


def resident_bytes(ensemble: Ensemble, layout: Layout) -> int:
    """Return the bytes of weights in memory while a runtime predicts with a layout."""
    if layout == "loop":
        return ensemble.nbytes + count_bytes(ensemble.members[0])
    return as_members(ensemble.members).unpacked_nbytes


def _make(ensemble: Ensemble, inputs: ExampleInputs, layout: Layout) -> "ONNXProgram":
    program = make_program(ensemble, inputs, layout)
    output = "probabilities" if isinstance(ensemble.task, Classification | MultiLabel) else "predictions"
    with exporting("ONNX"):
        # Optimization would unpack the base. A runtime does its own.
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
            node.metadata_props.clear()  # positions in the source code, which are larger than the weights
    about = {"task": task_to_manifest(ensemble.task) or task_to_manifest(Classification())}
    for key, value in (about | ensemble.input_spec.given()).items():
        made.model.metadata_props[key] = json.dumps(value)
    return made


def _measure(made: "Mapping[Layout, ONNXProgram]", inputs: ExampleInputs) -> dict[Layout, float]:
    """Return the seconds of each layout that ONNX Runtime can run."""
    with TemporaryDirectory() as folder:

        def opened(layout: Layout) -> Answer:
            file = Path(folder) / f"{layout}.onnx"
            made[layout].save(file)
            answer = open_in_runtime(file)
            answer(inputs)  # warms up
            return answer

        return measure_layouts(possible(made, opened), inputs)


def _require_names(ensemble: Ensemble, example: ExampleInputs, classes: Sequence[str]) -> None:
    task, shape = ensemble.task, ensemble.predict(example.batch()).shape
    if not isinstance(task, Classification | MultiLabel):
        raise InvalidValueError(
            f"classes must be None for {task}, which does not have classes or labels; leave classes out"
        )
    found = shape[task.dim if isinstance(task, Classification) else 1]
    if len(classes) != found:
        raise InvalidValueError(
            f"classes must name each of the model's {found} classes, got {len(classes)} names"
        )


def _require_packages() -> None:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        if find_spec(package) is None:
            raise ExportError(f'ONNX files need {package}; install it with pip install "pfge[export]"')
