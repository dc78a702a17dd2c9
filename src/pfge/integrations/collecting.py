"""The base of all callbacks for trainers: a trajectory that follows an optimizer by its step hooks."""

import hashlib
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from functools import partial
from importlib.metadata import version
from typing import Any, ClassVar
from weakref import WeakSet

from torch import Tensor, nn
from torch.optim import Optimizer

from pfge.collectors.base import Collector, as_collectors, require_unused
from pfge.ensemble import Ensemble
from pfge.errors import InvalidValueError
from pfge.schedules import Schedule, require_schedule
from pfge.storage.files import raw_bytes
from pfge.tasks import DEFAULT_TASK, Task
from pfge.trajectory import Trajectory, unwrap_optimizer
from pfge.weights import unwrap

SAMPLED = 4096
"""Numbers of each tensor that a digest is made from; a model may have billions."""

_followed: WeakSet[Optimizer] = WeakSet()


class Collecting:
    """Collects weights during a training that a trainer runs.

    Updates are counted by hooks of the optimizer itself, so accumulated and skipped steps count as in a
    loop of one's own, whatever the trainer does around them.

    Args:
        schedule: The learning rate for each iteration, or None to leave the rates to the trainer.
        collectors: One collector or several; see `Trajectory`.

    Attributes:
        trajectory: The path that is followed, once training has begun.
    """

    overrides_scheduler: ClassVar[bool] = False
    """Whether the trainer has a scheduler of its own, whose rates the user's schedule replaces."""

    def __init__(self, schedule: Schedule | None, collectors: Sequence[Collector] | Collector):
        require_schedule(schedule)
        self.schedule = schedule
        self.collectors = as_collectors(collectors)
        self.trajectory: Trajectory | None = None
        self._loaded: dict[str, Any] | None = None
        self._hooks: list[Any] = []

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Follow an optimizer from here on, or from the state that was loaded.

        Args:
            model: The model in training.
            optimizer: The optimizer; that of torch, inside accelerate's, is followed.

        Raises:
            ValueError: The optimizer is followed already, or this object or one of its collectors has
                followed another training.
        """
        self.detach()
        optimizer = unwrap_optimizer(model, optimizer)
        if optimizer in _followed:
            raise InvalidValueError(
                "an optimizer is followed by one CollectWeights at a time, and this one is followed already; "
                "add the callback once and give it all collectors, or call detach() of the other one if its "
                "training was interrupted"
            )
        done = self.trajectory.iteration if self.trajectory else 0
        if done and self._loaded is None:
            raise InvalidValueError(
                f"a CollectWeights follows one training, and this one has followed {done} updates already; "
                "construct another, or resume from a checkpoint"
            )
        if self._loaded is None:
            require_unused(self.collectors)
        trajectory = Trajectory(
            model,
            optimizer,
            self.schedule,
            self.collectors,
            overrides_scheduler=self.overrides_scheduler,
        )
        if self._loaded is not None:
            trajectory.load_state_dict(self._loaded)
            self._loaded = None
        self.trajectory = trajectory
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        _followed.add(optimizer)

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self.trajectory is not None and not _is_nested(optimizer):
            self.trajectory.before_update()

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self.trajectory is not None and not _is_nested(optimizer):
            self.trajectory.after_update()

    def detach(self) -> None:
        """Stop following; what was collected stays."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self.trajectory is not None:
            _followed.discard(self.trajectory.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return what was collected and counted; the trainer itself saves the model and the optimizer."""
        if self.trajectory is None:
            return {}
        return self.trajectory.state_dict(training=False)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, at once or when training begins.

        Raises:
            ValueError: The collectors are not those of the state.
        """
        if self._hooks and self.trajectory is not None:
            self.trajectory.load_state_dict(state)
        else:
            self._loaded = state or None

    def ensemble(
        self,
        build_model: Callable[[], nn.Module] | None = None,
        *,
        collector: Collector | None = None,
        **options: Any,
    ) -> Ensemble:
        """Return the ensemble of what was collected.

        Args:
            build_model: Returns a new module of the trained model's architecture. If None it is
                constructed as the trained one was, where the trainer's models know how.
            collector: The collector whose members are used; required if there are several.
            options: Arguments of `Ensemble`. Without `task`, the task is found from the trained model if the
                trainer's models allow that.

        Raises:
            ValueError: Nothing was collected, or the collector or the constructor has to be named.
        """
        if self.trajectory is None:
            raise InvalidValueError(
                "this process has not followed a training, so nothing was collected; train first (if the "
                "trainer spawns its processes, give the collector store=FOLDER and use Ensemble.load(FOLDER))"
            )
        model = unwrap(self.trajectory.model)
        build_model = build_model or self.constructor(model)
        options = {"task": self.task_of(model)} | options
        if collector is None:
            if len(self.collectors) != 1:
                found = ", ".join(map(str, self.collectors))
                raise InvalidValueError(
                    f"an ensemble has the members of one collector, got {found}; pass collector="
                )
            (collector,) = self.collectors
        return Ensemble.from_collector(collector, build_model, **options)

    def task_of(self, model: nn.Module) -> Task:
        """Return what the outputs of a model mean, if no task is given: here logits [N, C]."""
        return DEFAULT_TASK

    def constructor(self, model: nn.Module) -> Callable[[], nn.Module]:
        """Return a function that constructs another module like the trained one."""
        raise InvalidValueError(
            f"an ensemble has to construct a {type(model).__name__}; pass a function that returns one"
        )


def checked(construct: "partial[nn.Module]", remedy: str) -> Callable[[], nn.Module]:
    """Return a function that calls a constructor, with copies of the arguments each time.

    If the arguments are wrong its error names the remedy.
    """
    kind: type[nn.Module] = construct.func  # type: ignore[assignment]

    def build() -> nn.Module:
        try:
            # An argument may be a part of the trained module, which must not get the weights of members.
            return deepcopy(construct)()
        except TypeError as error:
            raise InvalidValueError(
                f"{kind.__name__} cannot be constructed ({error}); {remedy}, or pass ensemble() a build_model"
            ) from error

    build.__module__, build.__qualname__ = kind.__module__, kind.__qualname__
    return build


def sampled_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a SHA-256 of names, types and shapes, and of numbers from each tensor."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        flat = tensor.flatten()
        sample = flat[:: max(1, flat.numel() // SAMPLED)]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(raw_bytes(sample))
    return digest.hexdigest()


def warn_if_untested(package: str, tested: tuple[str, str]) -> None:
    """Warn if the installed version of a trainer is not in a tested range, both ends as major.minor."""
    first, last = tested
    installed = version(package)
    if not _parts(first) <= _parts(installed)[:2] <= _parts(last):
        warnings.warn(
            f"pfge is tested with {package} {first} to {last}, and {installed} is installed; "
            "compare members with those of a short run, or install a tested version",
            stacklevel=3,
        )


def _parts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def _is_nested(optimizer: Optimizer) -> bool:
    """Return whether the step whose hook asks is part of another one, as of a subclass that calls super().

    Torch runs the hooks of both if an optimizer of the base class was ever constructed. The stack is looked
    at, as a count of steps that began would be wrong from the first that raised.
    """
    step = sys._getframe(2)  # torch's wrapper of step(), which calls the hooks
    frame = step.f_back
    while frame is not None:
        if frame.f_code is step.f_code and frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False
