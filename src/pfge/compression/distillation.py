"""Train the steps of packed members until each predicts what its original did."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from math import cos, isfinite, pi, sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfge.ensemble import Ensemble
from pfge.errors import InvalidValueError
from pfge.forward import TargetsAt, repeat_batches, require_rereadable, run_model, without_targets
from pfge.packed import PackedMembers, PackedTensor, Quantized, require_packed
from pfge.packed.codes import STEP_TYPE, centered_codes, spread_steps
from pfge.packed.encode import MIX_TYPE
from pfge.packed.packed_members import numbers_of
from pfge.storage.checkpoint import load_checkpoint, save_checkpoint
from pfge.storage.files import StorageError
from pfge.weights import Weights, canonical_name, load_weights, unwrap


class TrainablePart(ABC):
    """A tensor of one member as a function of free numbers, which start at 0.

    Args:
        live: Name of the tensor in the model.
        like: The model's own tensor.
        count: Number of free numbers.
    """

    def __init__(self, live: str, like: Tensor, count: int):
        self.live = live
        self._like = like
        self.free = torch.zeros(count, device=like.device, requires_grad=True)

    def weight(self) -> Tensor:
        """Return the tensor as the model has it."""
        return _as(self._like, self._numbers())

    @abstractmethod
    def _numbers(self) -> Tensor:
        """Return the numbers of the tensor, flattened."""

    @abstractmethod
    def found(self) -> Tensor:
        """Return the trained values in the type in which they are stored."""


class _Steps(TrainablePart):
    """A quantized tensor: each step is its old one times 1 plus a free number."""

    def __init__(self, live: str, like: Tensor, tensor: PackedTensor, number: int):
        each = tensor.each[number]
        if not isinstance(each, Quantized):
            raise TypeError(f"only quantized numbers have steps, got {type(each).__name__}")
        super().__init__(live, like, len(each.steps))
        self._each = each
        self._old = each.steps.to(like.device, torch.float32)
        self._codes = centered_codes(each).to(like.device)
        self._base = None if tensor.base is None else numbers_of(tensor.base).float().to(like.device)

    def _steps(self) -> Tensor:
        return self._old * (1 + self.free)

    def _numbers(self) -> Tensor:
        delta = self._codes * spread_steps(self._steps(), self._each.group, self._each.count)
        return delta if self._base is None else self._base + delta

    def found(self) -> Tensor:
        return self._steps().detach().cpu().to(STEP_TYPE)


class _Factors(TrainablePart):
    """A tensor of components: each factor of the member's mix is its old one plus a free number."""

    def __init__(self, live: str, like: Tensor, tensor: PackedTensor, number: int):
        super().__init__(live, like, len(tensor.each))
        self._old = _mix_of(tensor)[number].to(like.device, torch.float32)
        self._components = torch.stack([numbers_of(part) for part in tensor.each]).to(like.device)
        base = torch.zeros(()) if tensor.base is None else numbers_of(tensor.base).float()
        self._base = base.to(like.device)
        self._unit = 1 / sqrt(len(_mix_of(tensor)))  # their usual size: a column's squares add up to 1

    def _factors(self) -> Tensor:
        return self._old + self._unit * self.free

    def _numbers(self) -> Tensor:
        return self._base + self._factors() @ self._components

    def found(self) -> Tensor:
        return self._factors().detach().cpu().to(MIX_TYPE)


def _mix_of(tensor: PackedTensor) -> Tensor:
    if tensor.mix is None:
        raise TypeError("the tensor has no components")
    return tensor.mix


class _Numbers(TrainablePart):
    """A small tensor: each number is its old one plus a free number in units of their usual size."""

    def __init__(self, live: str, like: Tensor, tensor: PackedTensor, number: int):
        self._old = tensor.member(number).to(like.device, torch.float32).reshape(-1)
        super().__init__(live, like, len(self._old))
        self._type = tensor.dtype
        self._unit = self._old.square().mean().sqrt() if len(self._old) else torch.tensor(0.0)

    def _numbers(self) -> Tensor:
        return self._old + self._unit * self.free

    def found(self) -> Tensor:
        return self._numbers().detach().cpu().to(self._type).view(self._like.shape)


def _as(like: Tensor, numbers: Tensor) -> Tensor:
    """Return flattened numbers with the shape, type and memory format of a model's own tensor."""
    tensor = numbers.to(like.dtype).view(like.shape)
    channels_last = like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last)
    return tensor.contiguous(memory_format=torch.channels_last) if channels_last else tensor


def is_stepped(tensor: PackedTensor) -> bool:
    """Return whether the deltas of a tensor are quantized matrices or filters."""
    return tensor.mix is None and len(tensor.shape) >= 2 and isinstance(tensor.each[0], Quantized)


def part_of(tensor: PackedTensor, number: int, live: str, like: Tensor) -> TrainablePart:
    """Return the trainable numbers of one member's tensor.

    Args:
        tensor: The packed tensor.
        number: Index of the member.
        live: Name of the tensor in the model.
        like: The model's own tensor.
    """
    kind = _Factors if tensor.mix is not None else _Steps if is_stepped(tensor) else _Numbers
    return kind(live, like, tensor, number)


Trained = dict[str, Tensor]
"""Trained values of one member: steps of deltas, factors of components, numbers of small tensors."""


class DistillationError(InvalidValueError):
    """Training diverged; the packed members are unchanged."""


@dataclass(frozen=True)
class Distillation:
    """Settings to train packed members until they predict what their originals do.

    Each member is trained alone, on inputs without targets, to minimize the divergence of its predictions
    from its original's. Only the steps of its deltas or its factors of components change, and small
    parameters such as biases and BatchNorm's. The base, all codes and complex numbers stay.

    Args:
        iterations: Number of iterations per member.
        rate: Highest learning rate of Adam, which falls to 0 by a cosine. It is relative: a rate of 0.003
            changes a step by about 0.3 % in an iteration.
        checkpoint: File with the finished members. An interrupted distillation continues with the next
            member, and ends with the same result. The caller removes the file.

    Example:
        >>> from pfge.compression import Distillation
        >>> Distillation(iterations=200, rate=0.004).rate_at(100)  # half of the highest
        0.002
    """

    iterations: int = 200
    rate: float = 0.003
    checkpoint: Path | None = None

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise InvalidValueError(f"iterations must be at least 1, got {self.iterations}")
        if not (isfinite(self.rate) and self.rate > 0):
            raise InvalidValueError(f"rate must be above 0 and finite, got {self.rate}")

    def rate_at(self, iteration: int) -> float:
        """Return the learning rate of an iteration, counted from 0."""
        return self.rate * (1 + round(cos(pi * iteration / self.iterations), 12)) / 2


USUAL_DISTILLATION = Distillation()


def distil(
    original: Ensemble,
    packed: Ensemble,
    batches: Iterable[Any],
    settings: Distillation = USUAL_DISTILLATION,
    on_iteration: Callable[[int, int, float], None] | None = None,
    *,
    targets: TargetsAt = None,
) -> Ensemble:
    """Return packed members with trained steps, in the same bytes, that predict more like their originals.

    Args:
        original: The members before packing, in the same order.
        packed: A result of `compress`.
        batches: Training inputs, which are read from their start for each member.
        settings: Iterations, learning rate and checkpoint.
        on_iteration: Called with the number of finished iterations, their total, and the latest divergence.
        targets: Location of targets in the batches, as for `Ensemble.predict_batches`.

    Raises:
        ValueError: `batches` is empty, or training diverged (`DistillationError`).

    Example:
        >>> import torch, pfge
        >>> from pfge.compression import Distillation, PackSettings, distil
        >>> generator = torch.Generator().manual_seed(0)
        >>> members = [{"weight": 1 + 0.1 * torch.randn(3, 64, generator=generator)} for _ in range(4)]
        >>> ensemble = pfge.Ensemble(members, lambda: torch.nn.Linear(64, 3, bias=False))
        >>> packed = pfge.compress(ensemble, pfge.Bits(1), settings=PackSettings(group=8))
        >>> inputs = [torch.randn(32, 64, generator=generator) for _ in range(4)]
        >>> better = distil(ensemble, packed, inputs, Distillation(iterations=50))
        >>> expected = ensemble.predict_batches(inputs)
        >>> found = [e.predict_batches(inputs) for e in (packed, better)]
        >>> before, after = (ensemble.task.divergence(expected, predictions) for predictions in found)
        >>> after < before, better.nbytes == packed.nbytes
        (True, True)
    """
    members = require_packed(packed.members, "distillation")
    require_rereadable(batches, len(packed))
    progress = _Progress(settings, packed)
    total = settings.iterations * len(packed)
    trainer = _Trainer(original, members, targets)
    for number in range(len(progress.done), len(packed)):
        start = number * settings.iterations

        def tell(iteration: int, loss: float, start: int = start) -> None:
            if on_iteration is not None:
                on_iteration(start + iteration, total, loss)

        progress.add(trainer.train(number, batches, settings, tell))
    return packed.with_members(_with_trained(members, progress.done), temperatures=packed.temperatures)


class _Progress:
    """The finished members, and the checkpoint that keeps them."""

    def __init__(self, settings: Distillation, packed: Ensemble):
        self.done: list[Trained] = []
        self._file = settings.checkpoint
        self._key = [packed.digest, settings.iterations, settings.rate]
        if self._file is not None and self._file.exists():
            match load_checkpoint(self._file):
                case {"of": of, "done": [*done]} if of == self._key and len(done) <= len(packed):
                    self.done = done
                case {"of": [*_], "done": [*_]}:
                    pass  # of other members or settings, so training starts from the beginning
                case _:
                    raise StorageError(
                        f"{self._file} must be a checkpoint of a distillation; delete it to start again"
                    )

    def add(self, trained: Trained) -> None:
        self.done.append(trained)
        if self._file is not None:
            save_checkpoint(self._file, {"of": self._key, "done": self.done})


class _Trainer:
    """The original and the packed member side by side in two modules of the same architecture."""

    def __init__(self, original: Ensemble, packed: PackedMembers, targets: TargetsAt):
        self._original, self._packed, self._task = original, packed, original.task
        with torch.random.fork_rng():  # building a model draws random weights
            self._teacher, self._student = (_Runs(original, targets) for _ in range(2))

    def train(
        self, number: int, batches: Iterable[Any], settings: Distillation, tell: Callable[[int, float], None]
    ) -> Trained:
        load_weights(self._teacher.model, self._original.members[number])
        parts = self._parts(number)
        if not parts:
            return {}
        free = [part.free for part in parts.values()]
        adam = torch.optim.Adam(free, lr=settings.rate)
        for iteration, batch in enumerate(islice(repeat_batches(batches), settings.iterations)):
            for group in adam.param_groups:
                group["lr"] = settings.rate_at(iteration)
            with torch.no_grad():
                expected = self._task.predictions(self._teacher(batch))
            weights = {f"model.{part.live}": part.weight() for part in parts.values()}
            predictions = self._task.predictions(functional_call(self._student, weights, (batch,)))
            loss = self._task.divergence_loss(expected, predictions)
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            found = loss.item()
            if not isfinite(found) or not all(bool(numbers.isfinite().all()) for numbers in free):
                raise DistillationError(
                    f"distillation diverged at iteration {iteration + 1} of member {number + 1}; lower the "
                    f"rate, got {settings.rate}"
                )
            tell(iteration + 1, found)
        return {name: part.found() for name, part in parts.items()}

    def _parts(self, number: int) -> dict[str, TrainablePart]:
        """Load a member into the student, and return its trainable numbers."""
        self._packed.load_into(self._student.model, number)
        live = dict(self._student.model.named_parameters())
        names = {canonical_name(name): name for name in live}
        parts: dict[str, TrainablePart] = {}
        for name, tensor in self._packed.tensors.items():
            if tensor.each and tensor.dtype.is_floating_point and name in names:
                parts[name] = part_of(tensor, number, names[name], live[names[name]])
        return parts


class _Runs(nn.Module):
    """A model of an ensemble, called with a batch as the ensemble calls it."""

    def __init__(self, ensemble: Ensemble, targets: TargetsAt):
        super().__init__()
        self.model = unwrap(ensemble.new_module())
        self._forward = without_targets(ensemble.forward, targets)

    def forward(self, batch: Any) -> Any:
        return run_model(self.model, batch, self._forward)


def _with_trained(members: PackedMembers, trained: list[Trained]) -> PackedMembers:
    changed: dict[str, PackedTensor] = {}
    for name in trained[0]:
        tensor, found = members.tensors[name], [of_member[name] for of_member in trained]
        if tensor.mix is not None:
            changed[name] = replace(tensor, mix=torch.stack(found))
        elif is_stepped(tensor):
            parts = (part for part in tensor.each if isinstance(part, Quantized))
            each = (replace(part, steps=steps) for part, steps in zip(parts, found, strict=True))
            changed[name] = replace(tensor, each=tuple(each))
    small: list[Weights] = [{n: t for n, t in of.items() if n not in changed} for of in trained]
    return PackedMembers(len(members), members.with_tensors(small).tensors | changed)
