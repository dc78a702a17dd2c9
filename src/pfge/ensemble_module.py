"""All members as one `nn.Module`, for torch.compile, torch.export and serving tools."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pfge.calibration import Temperatures
from pfge.errors import InvalidValueError
from pfge.forward import call_model, pick_logits
from pfge.packed import Quantized, require_packed
from pfge.packed.codes import STEP_TYPE
from pfge.packed.packed_members import PackedTensor, Stored
from pfge.prediction import MemberPool
from pfge.tasks import Task
from pfge.weights import Weights, canonical_name, require_same_layout, unwrap, view_weights

Form = Literal["loop", "vmap", "packed"]
TOLERANCE = 1e-6
ROUNDS = 5


class EnsembleModule(nn.Module):
    """Maps the model's inputs to the ensemble's predictions; made by `Ensemble.as_module`.

    Parameters and buffers have the model's names after `model.`, and hold all members' values along a new
    first dimension, or one value if it is the same in all members. Members that stay packed are buffers under
    `packed.` instead. Nothing requires gradients, and the members stay in evaluation mode.

    Args:
        model: A module of the members' architecture, which becomes a part of this module.
        members: The weights of each member.
        task: The ensemble's task.
        forward: Calls the model on a batch, like an ensemble's `forward`.
        temperatures: Temperatures and weights of the members, and the temperature of their mean.
        form: How members are evaluated: one after another ("loop"), all at once ("vmap"), or one after
            another, each unpacked for its turn ("packed"). An exported graph has the loop.

    Attributes:
        form: How members are evaluated; you may exchange "loop" and "vmap" at any time.
        seconds: The shortest time that a batch took in each form that was measured.

    Example:
        >>> import torch, pfge
        >>> members = [{"weight": torch.full((2, 1), 0.1 * k)} for k in range(4)]
        >>> module = pfge.Ensemble(members, lambda: torch.nn.Linear(1, 2, bias=False)).as_module()
        >>> module
        EnsembleModule(
          members=4, form=loop
          (model): Linear(in_features=1, out_features=2, bias=False)
        )
        >>> {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
        {'model.weight': [4, 2, 1]}
    """

    def __init__(
        self,
        model: nn.Module,
        members: Sequence[Weights],
        *,
        task: Task,
        forward: Callable[[nn.Module, Any], Any],
        temperatures: Temperatures,
        form: Form,
    ):
        super().__init__()
        if form not in get_args(Form):
            raise InvalidValueError(f"form must be one of {', '.join(get_args(Form))}, got {form!r}")
        self.model = unwrap(model).eval().requires_grad_(False)
        self.form = form
        self.seconds: dict[str, float] = {}
        self._task, self._temperatures, self._length = task, temperatures, len(members)
        self._outputs_checked = False
        # In a tuple, so that the model is a part of this module once.
        self._called = (Called(self.model, forward),)
        live = view_weights(self.model)
        names = {canonical_name(name): name for name in _tensors_of(self.model)}
        # Before tensors are replaced: a packed member's tied weights are separate tensors afterwards.
        self._places = _places_of(self.model)
        self._each: list[str] = []
        self._packed_names: list[str] = []
        if form == "packed":
            packed = require_packed(members, 'form="packed"')
            packed.require_fit(live)
            self.packed = nn.ModuleList(_PackedBuffers(tensor) for tensor in packed.tensors.values())
            self._packed_names = [names[name] for name in packed.tensors]
            for name in self._packed_names:
                _replace(self.model, name, None)
        else:
            for name, stack in _stack(members, live).items():
                differs = bool((stack != stack[:1]).any())
                _replace(self.model, names[name], stack if differs else stack[0].clone())
                self._each += [names[name]] if differs else []

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Return the predictions for a batch; the arguments are the model's."""
        pool = MemberPool(self._task, self._temperatures)
        for number, outputs in enumerate(self._outputs(inputs, named)):
            self._check(outputs)
            predictions = self._task.predictions(outputs)
            pool.add(self._task.calibrate(predictions, self._temperatures.of_member(number)))
        return pool.result()

    def _check(self, outputs: Any) -> None:
        """Refuse outputs of another kind, as an ensemble does, unless values are not known yet."""
        if torch.compiler.is_compiling() or self._outputs_checked:
            return
        if isinstance(outputs, Tensor) and outputs.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        # Inside of a transform such as vmap, values cannot be looked at, which is a RuntimeError.
        with suppress(RuntimeError):
            self._outputs_checked = self._task.check_outputs(outputs)

    def train(self, mode: bool = True) -> "EnsembleModule":  # noqa: ARG002 - as of nn.Module
        """Stay in evaluation mode: members predict, and BatchNorm keeps its statistics."""
        return super().train(mode=False)

    def extra_repr(self) -> str:
        """Return the number of members and the form."""
        return f"members={self._length}, form={self.form}"

    @torch.no_grad()
    def choose_form(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Choose "loop" or "vmap", whichever predicts a batch faster on the module's device.

        A model that vmap cannot evaluate, or evaluates to other predictions, stays in the loop.
        """
        self.form = "loop"
        expected = self(*inputs, **named)
        forms: list[Form] = ["loop"]
        self.form = "vmap"
        with suppress(Exception):  # vmap raises errors of many types for what it cannot evaluate
            if torch.allclose(self(*inputs, **named), expected, rtol=TOLERANCE, atol=TOLERANCE):
                forms.append("vmap")
        self.seconds = dict.fromkeys(forms, float("inf"))
        for _ in range(ROUNDS):  # in turns, so that a change of the machine's speed affects both
            for self.form in forms:
                _wait_for(expected.device)
                start = perf_counter()
                self(*inputs, **named)
                _wait_for(expected.device)
                self.seconds[self.form] = min(self.seconds[self.form], perf_counter() - start)
        self.form = min(forms, key=self.seconds.__getitem__)

    def _outputs(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> Iterable[Any]:
        """Return the model's outputs for a batch with the weights of each member."""
        held = _tensors_of(self.model)

        def run(own: Weights) -> Any:
            weights = {f"model.{place}": own[name] for name in own for place in self._places[name]}
            # With all names of a tied tensor, because torch would not restore a module that has two names.
            return functional_call(self._called[0], weights, inputs, named, tie_weights=False)

        if self.form == "packed":
            types = {name: held[name].dtype for name in self._packed_names}
            return (run(self._unpack(number, types)) for number in range(self._length))
        each = {name: held[name] for name in self._each}
        # In an exported graph, vmap of BatchNorm would fix the size of batches.
        if self.form == "vmap" and each and not torch.compiler.is_exporting():
            outputs: Tensor = vmap(run)(each)
            return outputs.unbind()
        return (run({name: stack[number] for name, stack in each.items()}) for number in range(self._length))

    def _unpack(self, number: int, types: dict[str, torch.dtype]) -> Weights:
        return {
            name: buffers.member(number).to(types[name])
            for name, buffers in zip(self._packed_names, self.packed, strict=True)
            if isinstance(buffers, _PackedBuffers)
        }


class Called(nn.Module):
    """A model, called as an ensemble calls it: with a batch's tensors as positional or keyword arguments."""

    def __init__(self, model: nn.Module, call: Callable[[nn.Module, Any], Any]):
        super().__init__()
        self.model = model
        self._call = call

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the outputs."""
        if self._call is call_model:
            return pick_logits(self.model(*inputs, **named))
        return self._call(self.model, named or (inputs[0] if len(inputs) == 1 else inputs))


class _PackedBuffers(nn.Module):
    """One packed tensor of all members in buffers."""

    def __init__(self, tensor: PackedTensor):
        super().__init__()
        self._shape = tensor.shape
        self._has_base, self._has_each = tensor.base is not None, bool(tensor.each)
        self._forms: dict[str, tuple[int, int, int] | None] = {}
        if tensor.base is not None:
            self._hold("base", [tensor.base])
        self._components = 0 if tensor.mix is None else len(tensor.each)
        if tensor.mix is not None:
            for place, part in enumerate(tensor.each):
                self._hold(f"component{place}", [part])
            self.register_buffer("mix", tensor.mix.float())
        elif tensor.each:
            self._hold("each", tensor.each)

    def member(self, number: int) -> Tensor:
        """Return the tensor of one member, as `PackedTensor.member` does but for its type."""
        if self._components:
            factors = self.get_buffer("mix")[number]
            values = sum(
                (self._numbers(f"component{place}", 0) * factors[place] for place in range(self._components)),
                self._numbers("base", 0).float()
                if self._has_base
                else torch.zeros((), device=factors.device),
            )
        elif not self._has_each:
            values = self._numbers("base", 0)
        elif not self._has_base:
            values = self._numbers("each", number)
        else:
            values = self._numbers("base", 0).float() + self._numbers("each", number)
        return values.view(self._shape)

    def _hold(self, name: str, stored: Sequence[Stored]) -> None:
        first = stored[0]
        if isinstance(first, Quantized):
            quantized = [part for part in stored if isinstance(part, Quantized)]
            self._forms[name] = (first.bits, first.group, first.count)
            self.register_buffer(f"{name}_codes", torch.stack([part.codes for part in quantized]))
            # As whole numbers, which `.to(dtype)` leaves alone: float16 has too small a range for steps.
            steps = torch.stack([part.steps for part in quantized])
            self.register_buffer(f"{name}_steps", steps.view(torch.int16))
        else:
            self._forms[name] = None
            values = torch.stack([part.reshape(-1) for part in stored if isinstance(part, Tensor)])
            self.register_buffer(f"{name}_values", values)

    def _numbers(self, name: str, row: int) -> Tensor:
        form = self._forms[name]
        if form is None:
            return self.get_buffer(f"{name}_values")[row]
        codes, steps = (self.get_buffer(f"{name}_{part}")[row] for part in ("codes", "steps"))
        return Quantized(codes, steps.view(STEP_TYPE), *form).numbers()


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers by the module's own names."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _places_of(model: nn.Module) -> dict[str, list[str]]:
    """Return all names of each tensor; tied weights have several."""
    places: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for leaf, tensor in (module._parameters | module._buffers).items():
            if tensor is not None:
                places.setdefault(id(tensor), []).append(f"{path}.{leaf}" if path else leaf)
    return {name: places[id(tensor)] for name, tensor in _tensors_of(model).items()}


def _stack(members: Sequence[Weights], live: Weights) -> Weights:
    """Return each tensor of all members, [K, ...], reading one member at a time."""
    stacks = {name: tensor.new_empty((len(members), *tensor.shape)) for name, tensor in live.items()}
    for number, member in enumerate(members):
        require_same_layout(live, member, "the model", "the weights")
        for name, stack in stacks.items():
            stack[number] = member[name]
    return stacks


def _replace(model: nn.Module, name: str, tensor: Tensor | None) -> None:
    """Replace a tensor under all its names; None leaves an empty one of its type."""
    old = _tensors_of(model)[name]
    if tensor is not None and isinstance(old, nn.Parameter):
        tensor = nn.Parameter(tensor, requires_grad=False)
    for module in model.modules():  # tied weights have several places
        for tensors in (module._parameters, module._buffers):
            for leaf in [leaf for leaf, found in tensors.items() if found is old]:
                if tensor is None:
                    del tensors[leaf]
                    module.register_buffer(leaf, old.new_empty(0), persistent=False)
                else:
                    tensors[leaf] = tensor  # type: ignore[assignment]


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
