"""What every export has in common: one graph, an atomic file, and a check of what the file answers."""

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule

from pfge.ensemble import Ensemble
from pfge.errors import InvalidValueError
from pfge.export.ensemble_graph import EnsembleGraph, ExampleInputs, Form, double
from pfge.storage.ensemble_folder import as_members
from pfge.storage.files import atomic_path
from pfge.tasks import Regression, Task

TOLERANCE = 1e-4


class ExportError(InvalidValueError):
    """A model that the format cannot express, or a file that answers otherwise than the ensemble."""


@dataclass(frozen=True)
class Exported:
    """A file that was written and checked.

    Attributes:
        path: The file.
        bytes: Its size.
        packed: Whether weights are stored packed, and unpacked when it predicts.
        largest_difference: Between its predictions and the ensemble's, over all batches tried; relative to
            those that are larger than 1. For a regression it is that of means and standard deviations.
        form: How members lie in the graph: in a "loop", or "side by side".
        seconds: For each form that was measured, the least that the example took, twice as large.
        resident: For each form that was considered, the bytes of weights in memory.
    """

    path: Path
    bytes: int
    packed: bool
    largest_difference: float
    form: Form = "loop"
    seconds: Mapping[Form, float] = field(default_factory=dict)
    resident: Mapping[Form, int] = field(default_factory=dict)


def make_program(ensemble: Ensemble, example: ExampleInputs, form: Form = "loop") -> ExportedProgram:
    """Return the graph of an ensemble for batches of any size.

    Raises:
        ExportError: A module cannot be put into a graph; the message has the reason.
    """
    if not len(ensemble):
        raise InvalidValueError("an ensemble needs a member to be exported, this one is empty")
    with torch.random.fork_rng():  # models draw their first weights
        predicted = next(ensemble.predict_each([example.batch()]))
        shape = None if example.axes else predicted.shape[1:]
        dtype = torch.float64 if predicted.dtype == torch.float64 else None
        graph = EnsembleGraph(ensemble, shape, form, dtype).eval()
    example.name_arguments(graph)
    batch = example.map(double)
    with exporting("a graph"), torch.no_grad(), _plain_attention():
        program = torch.export.export(
            graph, batch.by_place, batch.by_name, dynamic_shapes=example.dynamic_shapes()
        )
    _forget_the_machine(program)
    return program


def write_checked(
    ensemble: Ensemble,
    example: ExampleInputs,
    path: Path,
    write: Callable[[Path], None],
    read: Callable[[Path], Callable[[ExampleInputs], Tensor]],
) -> Exported:
    """Write a file under a temporary name, and rename it once it answers as the ensemble does.

    Args:
        ensemble: What the file is of.
        example: A batch of inputs.
        path: The file's name.
        write: Writes it.
        read: Opens it, and returns what maps inputs to predictions.

    Raises:
        ExportError: It answers otherwise; there is no file, or still the old one.
    """
    with atomic_path(path) as temporary:
        write(temporary)
        answer = read(temporary)
        difference = 0.0
        for batch in (example, example.map(double), example.map(lambda tensor: tensor[:1])):
            expected = ensemble.predict(batch.batch())
            found = difference_of(ensemble.task, answer(batch), expected)
            difference = max(difference, found) if found == found else found
            if not difference <= TOLERANCE:  # NaN neither
                raise ExportError(
                    f"the file must answer as the ensemble does, within {TOLERANCE}, but its predictions "
                    f"differ by {difference:.2g} for a batch of {len(batch)}; nothing was written"
                )
        size = temporary.stat().st_size
    return Exported(path, size, as_members(ensemble.members).is_quantized, difference)


def difference_of(task: Task, found: Tensor, expected: Tensor) -> float:
    """Return the largest difference of predictions, relative to those that are larger than 1.

    Where members of a regression lie far from 0 and close together, rounding of their means by a few parts in
    10^7 changes the small variance between them by far more. So standard deviations are compared, and allowed
    what such a rounding changes.
    """
    scale = expected.abs().clamp(min=1)
    if isinstance(task, Regression):
        mean, variance = expected.unbind(dim=-1)
        deviation = variance.sqrt()
        found = torch.stack([found[..., 0], found[..., 1].sqrt()], dim=-1)
        expected = torch.stack([mean, deviation], dim=-1)
        rounding = 16 * torch.finfo(torch.float32).eps / TOLERANCE * mean.abs()
        scale = torch.stack([mean.abs().clamp(min=1), deviation.clamp(min=1) + rounding], dim=-1)
    return ((found - expected).abs() / scale).max().item()


@contextmanager
def exporting(form: str) -> Iterator[None]:
    """Turn whatever an exporter raises into one sentence that names the operator or the line.

    What it logs besides is about its own insides, and is kept quiet.
    """
    before = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # exporters raise errors of many kinds, some of them private
        raise ExportError(f"the model cannot be written as {form}: {_reason(error)}") from error
    finally:
        logging.disable(before)


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Keep torch from its own kernel for transformer layers, which no other runtime has."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _forget_the_machine(program: ExportedProgram) -> None:
    """Drop the example and the paths of source files, which a file for other people must not contain."""
    program.example_inputs = None
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)


def _reason(error: BaseException) -> str:
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    text = "\n".join(str(one) for one in chain)
    if operator := re.search(r"No ONNX function found for <OpOverload\(op='([^']+)'", text):
        return f"it has no operator for {operator[1]}; replace it in the model, or use another format"
    if "Cannot access data pointer" in text:
        return "it holds a tensor that is no parameter and no buffer; register it with register_buffer"
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    where = re.findall(r'File "[^"]*", line \d+, in \w+\n\s+(.+)', str(error))
    return f"{first.strip()}, at `{where[-1].strip()}`" if where else first.strip()
