"""An ensemble as a graph, and as a file that is compared with the ensemble before it gets its name."""

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.export import Dim, ExportedProgram
from torch.func import functional_call
from torch.fx import GraphModule

from pfge.ensemble import Ensemble
from pfge.ensemble_module import Called
from pfge.errors import InvalidValueError
from pfge.forward import arguments_of, call_model, has_entries
from pfge.packed import Quantized, as_packed
from pfge.packed.codes import spread_steps
from pfge.packed.packed_members import Stored, pack_as_is
from pfge.storage.ensemble_folder import as_members
from pfge.storage.files import atomic_path
from pfge.tasks import MeanPool, Regression, Task
from pfge.weights import canonical_name, unwrap

INPUTS = "inputs"
BATCH = "batch"
Axes = Mapping[str, Mapping[int, str]]
"""Names of dimensions that may vary in addition to the first, for each input by its name."""


@dataclass(frozen=True)
class ExampleInputs:
    """Arguments of the model for an example batch.

    Args:
        by_place: Positional tensors; empty if the model takes tensors by name.
        by_name: Tensors by name.
        axes: Dimensions that may vary in addition to the first.
        calls_model: Whether the model is called with them directly, without the user's own `forward`.
    """

    by_place: tuple[Tensor, ...]
    by_name: dict[str, Tensor]
    axes: Axes
    calls_model: bool

    @classmethod
    def of(cls, ensemble: Ensemble, example: Any, axes: Axes | None) -> "ExampleInputs":
        """Return the inputs of a batch.

        Raises:
            ValueError: The batch has entries other than tensors [N, ...], or axes name unknown inputs or
                dimensions.
        """
        calls_model = ensemble.forward_in_views is call_model
        if calls_model:
            places, names = arguments_of(example)
        else:
            names = dict(example) if isinstance(example, Mapping) else {}
            places = () if names else tuple(example) if has_entries(example) else (example,)
        found = cls(tuple(places), names, axes or {}, calls_model)
        for name, tensor in found.named().items():
            if not isinstance(tensor, Tensor):
                raise InvalidValueError(
                    f"{name} of the example must be a tensor, got {type(tensor).__name__}"
                )
            if tensor.ndim < 1 or not len(tensor) or (len(found.named()) == 1 and tensor.ndim < 2):
                raise InvalidValueError(
                    f"example must be a batch of inputs [N, ...], got {list(tensor.shape)}"
                )
        sizes = {len(tensor) for tensor in found.named().values()}
        if len(sizes) != 1:
            raise InvalidValueError(f"all inputs must have the same number of examples, got {sorted(sizes)}")
        for name, dimensions in found.axes.items():
            if name not in found.named():
                raise InvalidValueError(f"axes must name inputs, {', '.join(found.named())}, got {name!r}")
            last = found.named()[name].ndim - 1
            if wrong := [d for d in dimensions if not 0 < d <= last]:
                raise InvalidValueError(f"axes of {name} must be dimensions from 1 to {last}, got {wrong[0]}")
        return found.map(lambda tensor: tensor.detach().cpu())

    def __len__(self) -> int:
        return len(next(iter(self.named().values())))

    def named(self) -> dict[str, Tensor]:
        """Return every input by its name in the file."""
        if len(self.by_place) == 1:
            return {INPUTS: self.by_place[0], **self.by_name}
        return {f"{INPUTS}_{place}": tensor for place, tensor in enumerate(self.by_place)} | self.by_name

    def map(self, change: Callable[[Tensor], Tensor]) -> "ExampleInputs":
        """Return the inputs with each tensor changed."""
        return replace(
            self,
            by_place=tuple(map(change, self.by_place)),
            by_name={name: change(tensor) for name, tensor in self.by_name.items()},
        )

    def batch(self) -> Any:
        """Return the inputs as a batch for the ensemble."""
        if self.by_name:
            return self.by_name
        if len(self.by_place) == 1:
            return self.by_place[0]
        return [self.by_place] if self.calls_model else self.by_place

    def dynamic_shapes(self) -> dict[str, Any]:
        """Return the dynamic shapes for `torch.export`, after `name_arguments` was called on the module."""
        dims = {name: Dim(name) for name in {BATCH}.union(*(axes.values() for axes in self.axes.values()))}
        each = {
            name: {0: dims[BATCH]} | {d: dims[axis] for d, axis in self.axes.get(name, {}).items()}
            for name in self.named()
        }
        return each if self.by_name else {INPUTS: tuple(each.values())}

    def name_arguments(self, module: nn.Module) -> None:
        """Replace `**named` in the signature of a module's forward by the names of these inputs.

        torch.export does not support dynamic shapes of `**named`.
        """
        if not self.by_name:
            return
        forward = module.forward

        def call(**named: Tensor) -> Any:
            return forward(**named)

        kind = Parameter.POSITIONAL_OR_KEYWORD
        call.__signature__ = Signature([Parameter(n, kind) for n in self.by_name])  # type: ignore[attr-defined]
        module.forward = call


def double(tensor: Tensor) -> Tensor:
    """Return a batch with its mirrored copy, because torch.export treats a batch size of 1 as constant."""
    return torch.cat([tensor, tensor.flip(0)])


Layout = Literal["loop", "side by side"]
CALIBRATION = "the calibration"
WEIGHT = "the weight"  # the last entry of a member's numbers
HALVINGS = torch.tensor([0.5**place for place in range(8)])


class EnsembleGraph(nn.Module):
    """Maps inputs to the ensemble's predictions, in float32.

    As a loop, the graph holds the model once, whatever the number of members: each pass reads one member's
    numbers, unpacks them if they are packed, and adds the member's predictions. Side by side, the graph holds
    the model once for each member, and everything that is computed from stored numbers alone is a constant,
    which a runtime computes when it opens the file.

    Args:
        ensemble: The ensemble to express as a graph.
        shape: Shape of one example's predictions; None if it may vary.
        layout: "loop" or "side by side".
        dtype: Type in which predictions are added up; float32 if None.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        shape: Sequence[int] | None,
        layout: Layout = "loop",
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self._layout = layout
        model = unwrap(ensemble.new_module()).cpu()
        # The tuple keeps the model's own weights out of the graph.
        self._called = (Called(model, ensemble.forward_in_views),)
        self._shape = None if shape is None else tuple(shape)
        self._dtype = dtype
        self._task = ensemble.task
        self._pooled = ensemble.temperatures.pooled
        self._weights = [ensemble.temperatures.weight_of(number) for number in range(len(ensemble))]
        self._is_mean = isinstance(ensemble.task.pool(), MeanPool)
        self._length = len(ensemble)
        tensors = dict(as_packed(ensemble.members).tensors)
        # Members do not hold temporary buffers, and the body of a loop must not hold constants.
        for name, buffer in model.named_buffers():
            tensors.setdefault(canonical_name(name), pack_as_is([buffer], 32))
        # Tensors that are the same in all members come first; the loop runs over the rest.
        self._shared, self._each = _Row(), _Row()
        self._components: dict[str, int] = {}
        for name, tensor in tensors.items():
            if tensor.base is not None:
                self._shared.add(name, [tensor.base])
            if tensor.mix is not None:
                for place, part in enumerate(tensor.each):
                    self._shared.add(component_of(name, place), [part])
                self._each.add(name, tensor.mix.float().unbind())
                self._components[name] = len(tensor.each)
            elif tensor.each:
                self._each.add(name, tensor.each)
        calibrations = ensemble.temperatures.members or [1.0] * len(ensemble)
        self._calibrates = ensemble.temperatures.members is not None
        self._each.add(CALIBRATION, [torch.tensor(calibration) for calibration in calibrations])
        self._each.add(WEIGHT, [torch.tensor(weight) for weight in self._weights])
        self.register_buffer("halvings", HALVINGS)
        for number, numbers in enumerate(self._shared.numbers):
            self.register_buffer(f"shared{number}", numbers[0])
        for number, numbers in enumerate(self._each.numbers):
            self.register_buffer(f"each{number}", numbers)
        self._shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        live = dict(model.named_parameters()) | dict(model.named_buffers())
        self._live_names = {name: canonical_name(name) for name in live}
        self._live_types = {name: tensor.dtype for name, tensor in live.items()}

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Return the predictions."""
        shared = [self.get_buffer(f"shared{number}") for number in range(len(self._shared.numbers))]
        each = [self.get_buffer(f"each{number}") for number in range(len(self._each.numbers))]

        if self._layout == "side by side":
            pool = self._task.pool()
            read = self._read_shared(shared)
            for number in range(self._length):
                own = [numbers[number] for numbers in each]
                pool.add(self._predict(inputs, named, read, own), self._weights[number])
            return self._task.calibrate(pool.result(), self._pooled).float()

        def add_member(total: Tensor, own: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            return total + own[-1] * self._predict(inputs, named, self._read_shared(shared), own), []

        def keep_member(total: Tensor, own: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            return total + 0, [self._predict(inputs, named, self._read_shared(shared), own)]

        if self._is_mean and self._shape is not None:
            examples = (*inputs, *named.values())[0].shape[0]
            total, _ = scan(add_member, torch.zeros((examples, *self._shape), dtype=self._dtype), each)
            pooled = total / sum(self._weights)
        else:
            # Other pools need the members' predictions side by side, and a loop that adds them would have to
            # know their shape in advance.
            _, (members,) = scan(keep_member, torch.zeros(1), each)
            pool = self._task.pool()
            for number in range(self._length):
                pool.add(members[number], self._weights[number])
            pooled = pool.result()
        return self._task.calibrate(pooled, self._pooled).float()

    def _read_shared(self, shared: list[Tensor]) -> dict[str, Tensor]:
        return self._shared.read(shared, self.get_buffer("halvings"))

    def _predict(
        self,
        inputs: tuple[Tensor, ...],
        named: dict[str, Tensor],
        shared: dict[str, Tensor],
        own: list[Tensor],
    ) -> Tensor:
        parts = shared, self._each.read(own, self.get_buffer("halvings"))
        weights: dict[str, Tensor] = {}
        for live, name in self._live_names.items():
            shape, dtype = self._shapes[name]
            numbers = [part[name] for part in parts if name in part]
            if count := self._components.get(name, 0):
                factors = numbers.pop()
                components = torch.stack([parts[0][component_of(name, place)] for place in range(count)])
                numbers.append((factors.view(-1, 1) * components).sum(dim=0))
            total = numbers[0] if len(numbers) == 1 else numbers[0].float() + numbers[1]
            # The members' type comes first, as in the ensemble, because a narrower type rounds.
            weights[f"model.{live}"] = total.to(dtype).to(self._live_types[live]).view(shape)
        predictions = self._task.predictions(functional_call(self._called[0], weights, inputs, named))
        if self._calibrates:
            calibration = parts[1][CALIBRATION]
            predictions = self._task.calibrate(predictions, calibration)
        # Float64 stays until members are pooled and calibrated: 1 - p of a certain label is 0 in float32.
        return predictions if predictions.dtype == torch.float64 else predictions.float()


def component_of(name: str, place: int) -> str:
    """Return the name of a component among stored numbers, which no tensor of a model can have."""
    return f"{name}: component {place}"


class _Row:
    """Stored numbers of several tensors as a list of plain tensors, with the encoding of each."""

    def __init__(self) -> None:
        self.numbers: list[Tensor] = []
        self._encodings: list[tuple[str, tuple[int, int, int] | None]] = []

    def add(self, name: str, stored: Sequence[Stored]) -> None:
        """Append one tensor of each member, all stored in the same encoding."""
        first = stored[0]
        if isinstance(first, Quantized):
            self._encodings.append((name, (first.bits, first.group, first.count)))
            quantized = [part for part in stored if isinstance(part, Quantized)]
            self.numbers.append(torch.stack([part.codes for part in quantized]))
            self.numbers.append(torch.stack([part.steps for part in quantized]))
        else:
            self._encodings.append((name, None))
            self.numbers.append(torch.stack([part for part in stored if isinstance(part, Tensor)]))

    def read(self, numbers: Sequence[Tensor], halvings: Tensor) -> dict[str, Tensor]:
        """Return one member's numbers of each tensor, flattened."""
        found = {}
        position = 0
        for name, encoding in self._encodings:
            if encoding is None:
                found[name] = numbers[position].reshape(-1)
                position += 1
            else:
                found[name] = unpack_in_graph(numbers[position], numbers[position + 1], halvings, *encoding)
                position += 2
        return found


def unpack_in_graph(
    codes: Tensor, steps: Tensor, halvings: Tensor, bits: int, group: int, count: int
) -> Tensor:
    """Return the result of `Quantized.numbers`, bit for bit, with operations that every runtime has.

    ONNX Runtime cannot shift bytes by other bytes. So bit k is the remainder modulo 2 of a number that is
    divided by 2**k and rounded down, which is exact in float32. `halvings` is `HALVINGS`.
    """
    numbers = codes.float()
    if bits < 8:
        halved = (numbers.view(bits, -1, 1) * halvings).floor()
        ones = halved - 2 * (halved / 2).floor()
        numbers = (ones / halvings[:bits].view(bits, 1, 1)).sum(dim=0).view(-1)
    centered = numbers[:count] - ((1 << bits) - 1) / 2
    return centered * spread_steps(steps.float(), group, count)


TOLERANCE = 1e-4


class ExportError(InvalidValueError):
    """The format cannot express the model, or the file's predictions differ from the ensemble's."""


@dataclass(frozen=True)
class Exported:
    """A file that was written and checked.

    Attributes:
        path: The file.
        bytes: Its size.
        packed: Whether weights are stored packed, and unpacked when the file predicts.
        largest_difference: Largest difference of its predictions from the ensemble's over all tested batches,
            relative to predictions that are larger than 1. For a regression, that is the difference of means
            and standard deviations.
        layout: Layout of the members in the graph, "loop" or "side by side".
        seconds: Least time in each measured layout that the example took, doubled in size.
        resident: Bytes of weights in memory for each layout that was considered.
    """

    path: Path
    bytes: int
    packed: bool
    largest_difference: float
    layout: Layout = "loop"
    seconds: Mapping[Layout, float] = field(default_factory=dict)
    resident: Mapping[Layout, int] = field(default_factory=dict)


def make_program(ensemble: Ensemble, example: ExampleInputs, layout: Layout = "loop") -> ExportedProgram:
    """Return the graph of an ensemble for batches of any size.

    Raises:
        ExportError: The model cannot be expressed as a graph; the message has the reason.
    """
    if not len(ensemble):
        raise InvalidValueError(
            "exporting needs at least one member, but the ensemble is empty; collect or load some"
        )
    with torch.random.fork_rng():  # models draw their first weights
        predicted = next(ensemble.predict_each([example.batch()]))
        shape = None if example.axes else predicted.shape[1:]
        dtype = torch.float64 if predicted.dtype == torch.float64 else None
        graph = EnsembleGraph(ensemble, shape, layout, dtype).eval()
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
    """Write a file under a temporary name, and rename it once its predictions equal the ensemble's.

    Args:
        ensemble: The exported ensemble.
        example: A batch of inputs.
        path: The file.
        write: Writes the file.
        read: Opens the file, and returns a function from inputs to predictions.

    Raises:
        ExportError: The predictions differ; an older file is still there.
    """
    with atomic_path(path) as temporary:
        write(temporary)
        answer = read(temporary)
        difference = 0.0
        for batch in (example, example.map(double), example.map(lambda tensor: tensor[:1])):
            expected = ensemble.predict(batch.batch())
            found = difference_of(ensemble.task, answer(batch), expected)
            difference = max(difference, found) if found == found else found
            if not difference <= TOLERANCE:  # also refuses NaN
                raise ExportError(
                    f"the file's predictions must be within {TOLERANCE} of the ensemble's, but differ by "
                    f"{difference:.2g} for a batch of {len(batch)}; nothing was written"
                )
        size = temporary.stat().st_size
    return Exported(path, size, as_members(ensemble.members).is_quantized, difference)


def difference_of(task: Task, found: Tensor, expected: Tensor) -> float:
    """Return the largest difference of predictions, relative to predictions that are larger than 1.

    If members of a regression lie far from 0 and close together, rounding their means by a few parts in 10^7
    changes the small variance between them by far more. So standard deviations are compared instead, with a
    tolerance for this rounding.
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
def exporting(what: str) -> Iterator[None]:
    """Turn any exception of an exporter into one sentence that names the operator or the line.

    The exporter's logging about its internals is disabled.

    Args:
        what: Name of the format, for the error.
    """
    before = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # exporters raise errors of many kinds, some of them private
        raise ExportError(f"the model cannot be written as {what}: {_reason(error)}") from error
    finally:
        logging.disable(before)


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Disable torch's own kernel for transformer layers, which other runtimes lack."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _forget_the_machine(program: ExportedProgram) -> None:
    """Remove the example and the paths of source files, which a file for other people must not contain."""
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
        return "it holds a tensor that is neither a parameter nor a buffer; register it with register_buffer"
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    where = re.findall(r'File "[^"]*", line \d+, in \w+\n\s+(.+)', str(error))
    return f"{first.strip()}, at `{where[-1].strip()}`" if where else first.strip()
