"""The interface of collectors, and how their weights are applied to a model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, final
from weakref import WeakSet

import torch
from torch import Tensor, nn

from pfge.batch_norm import FrozenLayers, refresh_batch_norm
from pfge.errors import InvalidTypeError, InvalidValueError, MisuseError
from pfge.forward import keep_modes
from pfge.schedules import require_whole
from pfge.sharding import keep_parts_only
from pfge.weights import Weights, describe_weights, find_non_finite, load_weights, unwrap

_holding: WeakSet[nn.Module] = WeakSet()  # modules that hold other weights than their own


@contextmanager
def apply_weights(
    model: nn.Module,
    weights: Weights,
    batches: Iterable[Any] | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    frozen: FrozenLayers = "keep",
) -> Iterator[None]:
    """Put weights into a model, and restore the model and the random state at the end.

    Args:
        model: The model; its wrappers are looked through.
        weights: Weights that it holds inside of the block.
        batches: Training data for BatchNorm statistics, which are computed first; None to skip that.
        forward: Calls the model on a batch; see `refresh_batch_norm`.
        frozen: BatchNorm layers to leave alone; see `refresh_batch_norm`.
    """
    module = unwrap(model)
    require_own_weights(module)
    _holding.add(module)
    keep_parts_only(module)
    tensors = [*module.parameters(), *module.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    buffers = [(part._buffers, dict(part._buffers)) for part in module.modules()]
    try:
        with keep_modes(module), torch.random.fork_rng():
            load_weights(module, weights)
            if batches is not None:
                refresh_batch_norm(module, batches, forward=forward, frozen=frozen)
            yield
    finally:
        keep_parts_only(module)
        _restore(tensors, before)
        torch.clear_autocast_cache()  # as in load_weights
        for table, entries in buffers:  # some modules replace a buffer instead of writing to it
            table.update(entries)
        _holding.discard(module)


def require_own_weights(model: nn.Module) -> None:
    """Refuse a model that holds other weights, which would be lost, averaged or mistaken for its own."""
    if unwrap(model) in _holding:
        raise MisuseError(
            "the model holds the weights of an applied() block; leave the block before another applied() or "
            "an update"
        )


@torch.no_grad()
def _restore(tensors: list[Tensor], before: list[Tensor]) -> None:
    for tensor, old in zip(tensors, before, strict=True):
        tensor.copy_(old)


@dataclass(frozen=True)
class Restart:
    """A collector's request that the trajectory continue from other weights.

    A collector returns it from `collect`. The trajectory copies the weights into the model. With
    `clear_momentum` it also drops the optimizer's state of every parameter, as in a new optimizer.

    Args:
        weights: Weights to continue from.
        clear_momentum: Whether the optimizer's state is dropped.

    Example:
        >>> import torch
        >>> from pfge import PFGE
        >>> collector = PFGE(cycle=1, period=2)
        >>> collector.begin({"w": torch.tensor(0.0)})
        >>> collector.observe(1, {"w": torch.tensor(2.0)})
        >>> restart = collector.observe(2, {"w": torch.tensor(4.0)})
        >>> restart
        Restart(<weights of 1 number>, clear_momentum=True)
        >>> restart.weights["w"].item()
        2.0
    """

    weights: Weights
    clear_momentum: bool = True

    def __repr__(self) -> str:
        return f"Restart({describe_weights(self.weights)}, clear_momentum={self.clear_momentum})"


class Collector(ABC):
    """Watch a trajectory's weights, as plain dicts of tensors, and keep some as members.

    A method of your own is a subclass that defines the abstract methods below. `Trajectory` calls `begin`
    once, and `collect` after each update whose iteration is `due`, if the weights are finite. `observe` does
    the same without a trajectory. `state_dict` must return dicts, lists, tensors and plain values, which
    `save_checkpoint` writes. `AveragingCollector` is a shorter start for a method that keeps one average.

    Example:
        A collector that keeps the last few points, for example to average the last checkpoints:

        >>> import torch, pfge
        >>> from pfge.weights import copy_weights
        >>> class Last(pfge.Collector):
        ...     def __init__(self, count):
        ...         self.count = count
        ...         self._kept = {}
        ...
        ...     def begin(self, weights, buffers=()):
        ...         self._kept = {}
        ...
        ...     def due(self, iteration):
        ...         return True
        ...
        ...     def collect(self, iteration, weights):
        ...         self._kept[iteration] = copy_weights(weights)
        ...         self._kept = dict(list(self._kept.items())[-self.count :])
        ...
        ...     def members(self):
        ...         return list(self._kept.values())
        ...
        ...     @property
        ...     def iterations(self):
        ...         return list(self._kept)
        ...
        ...     def state_dict(self):
        ...         return {"kept": self._kept}
        ...
        ...     def load_state_dict(self, state):
        ...         self._kept = dict(state["kept"])
        >>> last = Last(count=2)
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters())
        >>> trajectory = pfge.Trajectory(model, optimizer, pfge.Constant(0.1), [last])
        >>> trajectory
        Trajectory(<Linear>, <SGD>, Constant(rate=0.1), [Last(count=2)])
        >>> batches = [torch.ones(4, 1)]
        >>> pfge.follow(trajectory, batches, lambda model, x: model(x).square().mean(), iterations=5)
        >>> last.iterations
        [4, 5]
    """

    steers: ClassVar[bool] = False
    """Whether it may return a `Restart`; a trajectory takes one such collector at most."""

    averages: bool = False
    """Whether members are averages or samples, not points of the path. The BatchNorm statistics that such
    members have belong to other weights, so an ensemble that uses them warns."""

    frozen_batch_norm: frozenset[str] = frozenset()
    """Names of BatchNorm layers that were in evaluation mode in training; a trajectory sets it."""

    followed_by: object = None
    """Identifies the trajectory that began last with this collector; that trajectory sets it."""

    @abstractmethod
    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:
        """Begin at the start point, before the first update.

        Args:
            weights: The start point; live tensors, so copy what you keep.
            buffers: Names of the tensors that are buffers. Averages take their latest value, because their
                mean may be meaningless (the unit vectors of a spectral norm).
        """

    @abstractmethod
    def due(self, iteration: int) -> bool:
        """Return whether this collector needs the weights after this iteration."""

    def needs_low_rate(self, iteration: int) -> bool:
        """Return whether this collector needs the weights after this iteration at a low learning rate.

        A trajectory warns if its schedule is high there. The default is every iteration that is due.
        """
        return self.due(iteration)

    @final
    def observe(self, iteration: int, weights: Weights) -> Restart | None:
        """Look at the weights after an iteration; weights that are not finite are refused.

        Args:
            iteration: Updates so far, from 1.
            weights: The point; live tensors.

        Returns:
            The result of `collect`; None if the iteration is not due.

        Raises:
            ValueError: The weights hold NaN or infinity; what was kept before stays.
        """
        if not self.due(iteration):
            return None
        require_finite(self, iteration, find_non_finite(weights))
        return self.collect(iteration, weights)

    @abstractmethod
    def collect(self, iteration: int, weights: Weights) -> Restart | None:
        """Use finite weights at an iteration that is due; `observe` calls this.

        Args:
            iteration: Updates so far, from 1.
            weights: The point; live tensors, so copy what you keep.

        Returns:
            A restart, from a collector that steers; None to continue as it is.
        """

    @abstractmethod
    def members(self) -> Sequence[Weights]:
        """Return the members so far, oldest first."""

    @property
    @abstractmethod
    def iterations(self) -> Sequence[int | None]:
        """The iteration of each member so far; None where it belongs to no single one."""

    def mean_so_far(self) -> Weights:
        """Return one model of what was collected so far: by default the newest member.

        A collector that averages returns its mean, also in the middle of a period.

        Raises:
            ValueError: Nothing was collected yet.
        """
        members = self.members()
        if not len(members):
            raise InvalidValueError(
                f"{self} has collected nothing yet; train on until an iteration that is due"
            )
        return members[-1]

    def applied(
        self,
        model: nn.Module,
        batches: Iterable[Any] | None = None,
        *,
        forward: Callable[[nn.Module, Any], Any] | None = None,
    ) -> AbstractContextManager[None]:
        """Put `mean_so_far` into a model for the duration of a `with` block, to validate or save it.

        At the end, or if anything raises, the model has its own weights, buffers and modes again, and the
        random state is what it was, so training goes on as if nothing had happened. It needs two
        copies of the weights meanwhile.

        Args:
            model: The model in training; its wrappers are looked through.
            batches: Training data for BatchNorm statistics, which are computed first. None uses the
                statistics of the latest collected weights.
            forward: Calls the model on a batch; see `refresh_batch_norm`.

        Raises:
            ValueError: Nothing was collected yet.
            RuntimeError: The model is in such a block already, or is updated in it.

        Example:
            >>> import torch, pfge
            >>> model = torch.nn.Linear(1, 1, bias=False)
            >>> _ = torch.nn.init.constant_(model.weight, 4.0)
            >>> collector = pfge.SWA(cycle=1)
            >>> collector.begin({"weight": torch.zeros(1, 1)})
            >>> collector.observe(1, {"weight": model.weight})
            >>> with collector.applied(model):
            ...     model.weight.item()
            2.0
            >>> model.weight.item()
            4.0
        """
        return apply_weights(model, self.mean_so_far(), batches, forward, self.frozen_batch_norm or "keep")

    def pending_description(self) -> str | None:
        """Describe the weights that are in no member yet, for messages; None if all are in members."""
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs; live tensors, like an optimizer's."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` gave, in place of `begin`."""

    def __repr__(self) -> str:
        """Return the constructor call, for messages, manifests and checkpoints.

        It shows each parameter that is also an attribute. The store is left out, because a run may resume in
        another folder.
        """
        names = [name for name in signature(type(self)).parameters if hasattr(self, name)]
        return constructor_call(self, names)

    def last_used_iteration(self, iterations: int) -> int:
        """Return the last of the given number of iterations that a member depends on.

        `follow` warns of later iterations. By default every iteration counts; a collector with one member per
        period returns the end of the last whole period.
        """
        return iterations


def require_finite(collector: Collector, iteration: int, non_finite: str | None) -> None:
    """Raise a ValueError if a tensor was found that is not finite; it is named by `non_finite`."""
    if non_finite is not None:
        raise InvalidValueError(
            f"{collector} needs finite weights, but {non_finite} holds NaN or infinity at iteration "
            f"{iteration}; lower the learning rate, or resume from an earlier checkpoint"
        )


def constructor_call(value: object, names: Iterable[str]) -> str:
    """Return the call that makes a value with these attributes, as `SWA(cycle=4, phase=0)`."""
    arguments = ", ".join(f"{name}={getattr(value, name)!r}" for name in names)
    return f"{type(value).__name__}({arguments})"


def as_collectors(collectors: Sequence[Collector] | Collector) -> tuple[Collector, ...]:
    """Return one or several collectors as a tuple; raise a TypeError for anything else."""
    found = tuple(collectors) if isinstance(collectors, Iterable) else (collectors,)
    for collector in found:
        if not isinstance(collector, Collector):
            raise InvalidTypeError(
                f"collectors must be objects such as SWA(cycle=4), got {collector!r}; construct the "
                "collector first"
            )
    return found


def first_member(collector: Collector) -> int | None:
    """Return the iteration of the first member that a training would make; None if unknown."""
    ahead = range(1, 1_000_001)
    return next((i for i in ahead if collector.due(i) and collector.last_used_iteration(i) == i), None)


def require_unused(collectors: Iterable[Collector]) -> None:
    """Raise a ValueError if a collector has collected something, which another `begin` would discard."""
    for collector in collectors:
        if len(collector.iterations) or collector.pending_description():
            raise InvalidValueError(
                f"{collector} already holds weights of another training, which would be lost; construct a "
                "new collector for each training, or resume with load_state_dict()"
            )


def require_own_collectors(collectors: Iterable[Collector], mark: object) -> None:
    """Raise a RuntimeError if another trajectory, with another mark, has begun with one of the collectors."""
    for collector in collectors:
        if collector.followed_by is not mark:
            raise MisuseError(
                f"another Trajectory has begun with {collector}, so its members would mix two trainings; "
                "construct a collector for each Trajectory"
            )


def require_cycle(cycle: int, phase: int) -> None:
    """Raise a ValueError unless `phase` is a position in a `cycle` of at least one iteration."""
    require_whole(cycle=cycle, phase=phase)
    if cycle < 1:
        raise InvalidValueError(f"cycle must be at least 1 iteration, got {cycle}")
    if not 0 <= phase < cycle:
        raise InvalidValueError(f"phase must be from 0 to cycle - 1 = {cycle - 1}, got {phase}")
