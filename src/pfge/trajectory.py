"""Hooks into a training loop: the schedule sets the learning rate, collectors see the weights."""

import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, chain, pairwise
from operator import is_
from statistics import fmean
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pfge.batch_norm import frozen_batch_norm
from pfge.collectors.base import (
    Collector,
    Restart,
    as_collectors,
    require_finite,
    require_own_collectors,
    require_own_weights,
    require_unused,
)
from pfge.errors import InvalidTypeError, InvalidValueError, MisuseError
from pfge.forward import repeat_batches
from pfge.schedules import Schedule, require_schedule
from pfge.sharding import is_split, keep_parts_only, own_part, require_known_split, split_modules
from pfge.weights import (
    FiniteCheck,
    FrozenParameters,
    Weights,
    buffer_names,
    copy_into,
    in_memory_order_of,
    is_averaged,
    is_finite,
    load_weights,
    named_tensors,
    require_wide,
    share_narrow,
    unwrap,
    view_weights,
    without,
)


class GroupRates:
    """Sets the learning rates of all parameter groups, which keep their ratios.

    Args:
        optimizer: Optimizer whose rates are set. Its rates give the ratios, or its initial rates if a torch
            scheduler has changed them.
        is_scheduled: Whether the rates will be set; if not, the optimizer may choose them itself.
        overrides_scheduler: Whether rates that something else changes are overridden without a warning.

    Attributes:
        ratios: Ratio of each group's rate to the largest.

    Raises:
        ValueError: Rates are to be set, and the optimizer has no learning rate.
    """

    def __init__(self, optimizer: Optimizer, *, is_scheduled: bool, overrides_scheduler: bool = False):
        self._optimizer = optimizer
        self._overrides_scheduler = overrides_scheduler
        self._first = _rates_at_start(optimizer, is_scheduled=is_scheduled)
        self._set: list[float] | None = None
        self.ratios = _ratios(self._first)

    def set(self, largest: float) -> None:
        """Set the rates of all groups."""
        for group, ratio in zip(self._optimizer.param_groups, self.ratios, strict=True):
            if isinstance(group["lr"], Tensor):  # capturable optimizers keep the rate on the device
                group["lr"].fill_(largest * ratio)
            else:
                group["lr"] = largest * ratio
        self._set = self._plain_rates()

    def resume(self, ratios: Sequence[float]) -> None:
        """Continue with the ratios of an earlier run."""
        self.ratios = list(ratios)
        self._set = None

    def add_groups(self, *, begun: bool) -> None:
        """Note the ratios of groups that were added to the optimizer since the last update.

        Args:
            begun: Whether there was an update; before it, the rates are still the optimizer's own.
        """
        known, groups = len(self.ratios), self._optimizer.param_groups
        if len(groups) <= known:
            return
        if not begun or not known:
            self._first = _rates_at_start(self._optimizer, is_scheduled=True)
            self.ratios = _ratios(self._first)
            return
        # Relative to the current rate, the same line of code would mean another ratio at each iteration.
        largest = max(self._first)
        new = [min(float(group["lr"]) / largest, 1.0) if largest else 1.0 for group in groups[known:]]
        self.ratios = [*self.ratios, *new]

    def warn_of_changes(self, iteration: int) -> None:
        """Warn once if something else has changed the rates since an iteration."""
        if self._overrides_scheduler or self._set is None:
            return
        if (found := self._plain_rates()) != self._set:
            self._overrides_scheduler = True  # one warning is enough
            warnings.warn(
                f"the learning rates were {self._set} at update {iteration} and are now {found}: "
                "something else, probably a torch scheduler, sets them too and is overridden; remove it, or "
                "pass schedule=None to keep its rates",
                stacklevel=3,
            )

    def _plain_rates(self) -> list[float]:
        """Return the rates that are numbers, without groups that were added since the last update.

        Tensors are left out, because reading one would wait for its device.
        """
        groups = self._optimizer.param_groups[: len(self.ratios)]
        return [group["lr"] for group in groups if not isinstance(group["lr"], Tensor)]


def _rates_at_start(optimizer: Optimizer, *, is_scheduled: bool) -> list[float]:
    """Return the rate of each group, before a torch scheduler changed it if one did."""
    if any(group.get("lr") is None for group in optimizer.param_groups):  # it chooses its rates itself
        if not is_scheduled:
            return []
        raise InvalidValueError(
            "a schedule needs an optimizer with a learning rate, got None; pass schedule=None to let the "
            "optimizer choose its rates"
        )
    now = [float(group["lr"]) for group in optimizer.param_groups]
    if not all("initial_lr" in group for group in optimizer.param_groups):
        return now
    # A scheduler may have brought all groups to one rate, such as 0.
    first = [float(group["initial_lr"]) for group in optimizer.param_groups]
    if is_scheduled:
        _warn_of_other_ratios(_ratios(now), _ratios(first))
    return first


def _warn_of_other_ratios(now: list[float], first: list[float]) -> None:
    if any(abs(a - b) > 1e-6 for a, b in zip(now, first, strict=True)):
        warnings.warn(
            f"the rates of the parameter groups have the ratios {now}, and had {first} before a scheduler "
            "changed them; the latter are used; remove initial_lr from the groups to use the former",
            stacklevel=5,
        )


def _ratios(rates: Sequence[float]) -> list[float]:
    largest = max(rates, default=0.0)
    return [rate / largest if largest else 1.0 for rate in rates]


class LiveWeights:
    """Views of one model's live tensors, as `view_weights` returns them, but cheap to repeat.

    The modules are walked once, and again when a module, a parameter or a buffer was added, removed or
    replaced. A view always has the model's current tensors. While they stay in place in memory, all views
    have the same tensor objects. Modules of FSDP2 first drop unsharded parameters that a forward pass may
    have left: the optimizer does not write to these, and their memory is freed later.

    Args:
        model: DDP, DataParallel and torch.compile wrappers are looked through.

    Attributes:
        unchecked: Names of buffers that may hold NaN or infinity, such as an attention mask.
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self.unchecked: frozenset[str] = frozenset()
        self._frozen: FrozenParameters | None = None
        self._copies: Weights = {}
        self._finite: FiniteCheck | None = None
        self._walk()

    def freeze(self, unchecked: Collection[str] | None = None) -> None:
        """Let `view` give one shared copy of each parameter that is frozen now, until it changes.

        Args:
            unchecked: Names of buffers that may hold NaN or infinity; None for the buffers that do now.
        """
        self.live()  # the model may have been changed since it was walked
        buffers = buffer_names(self._module)
        self._frozen = FrozenParameters((name, p) for name, p in self._named if name not in buffers)
        if unchecked is None:
            unchecked = [name for name, t in self._named if name in buffers and _is_infinite(t)]
        self.unchecked = frozenset(unchecked)
        self._finite = None

    def live(self) -> Weights:
        """Return the live tensors: writing to them changes the model."""
        for part in self._split:
            part.reshard()
        if not self._is_current():
            self._walk()
        elif not self._is_in_place():
            self._detach()
        return dict(self._detached)

    def view(self) -> Weights:
        """Return the live tensors, and shared copies of those that are frozen."""
        weights = self.live()
        if self._frozen is None:
            return weights
        if (copies := self._frozen.copies(self._named)).keys() != self._copies.keys():
            self._copies, self._finite = copies, None
        return weights | copies

    def find_non_finite(self) -> str | None:
        """Return the name of the first tensor of the latest view that holds NaN or infinity, or None.

        Buffers that did so at the start, which are never averaged, are left out.
        """
        if self._finite is None:
            self._finite = FiniteCheck(without(self._detached, self._copies.keys() | self.unchecked))
        return self._finite.find()

    def _walk(self) -> None:
        self._module = unwrap(self._model)
        self._split = split_modules(self._module)  # once: most models have none, and pay for none
        for part in self._split:
            part.reshard()
        self._named = [(name, tensor) for name, tensor, _ in named_tensors(self._module)]
        _require_dense(self._named)
        tables: list[dict[str, Any]] = [
            table
            for module in self._module.modules()
            for table in (module._modules, module._parameters, module._buffers)
        ]
        self._filled = [table for table in tables if table]
        self._empty = [table for table in tables if not table]
        self._entries = self._list_entries()
        self._detach()

    def _detach(self) -> None:
        self._detached = {name: tensor.detach() for name, tensor in self._named}
        self._finite = None
        # The tensors of other classes, as those of FSDP2, may change what they hold by themselves.
        plain = all(type(tensor) in (Tensor, nn.Parameter) for _, tensor in self._named)
        self._addresses = self._list_addresses() if plain else None

    def _is_current(self) -> bool:
        # Kept entries are alive, so no other object can have their identity.
        if any(self._empty):
            return False
        entries = self._list_entries()
        same = len(entries) == len(self._entries) and all(map(is_, entries, self._entries))
        return same and unwrap(self._model) is self._module

    def _is_in_place(self) -> bool:
        """Return whether no tensor was given other memory, as by assigning to its `.data`."""
        return self._addresses is not None and self._list_addresses() == self._addresses

    def _list_entries(self) -> list[Any]:
        return list(chain.from_iterable(table.values() for table in self._filled))

    def _list_addresses(self) -> list[int]:
        return [tensor.data_ptr() for _, tensor in self._named]


def _is_infinite(tensor: Tensor) -> bool:
    # A split tensor would have to be checked by all processes.
    return is_averaged(tensor) and not is_split(tensor) and not is_finite(tensor)


def _require_dense(named: list[tuple[str, Tensor]]) -> None:
    """Refuse sparse tensors, which have no memory that could be copied or averaged in place."""
    for name, tensor in named:
        if type(tensor) in (Tensor, nn.Parameter) and tensor.layout != torch.strided:
            raise InvalidValueError(
                f"a trajectory supports dense tensors only, but {name} has the layout {tensor.layout}; "
                "register it as a buffer with persistent=False"
            )


UPDATES_WITHOUT_STEP = 20
"""Updates in a row without a step that count as an error in the loop; `GradScaler` may skip a few."""
UPDATES_OF_ACCUMULATION = 1_000
"""The same while gradients grow and weights stay, as where gradients of many batches are accumulated."""

SAMPLED_PARAMETERS = 4


class StepWatch:
    """Counts the steps that an optimizer makes between `before` and `after`.

    A hook counts the steps, so steps that `GradScaler` skips or accelerate postpones do not count. Steps
    before the first `before` are ignored.

    Args:
        wrapper: The optimizer whose `step()` the loop calls.
        optimizer: The torch optimizer inside it, which may be the same.
    """

    def __init__(self, wrapper: Optimizer, optimizer: Optimizer):
        self._wrapper = wrapper
        self._optimizer = optimizer
        self._has_warned = False
        self._times_lost = 0
        self.reset(begun=False)
        optimizer.register_step_post_hook(self._note_step)

    def reset(self, *, begun: bool) -> None:
        """Forget all steps; `begun` is whether steps count from here on, or from the next `before`."""
        self._begun = begun
        self._is_open = False
        self._is_skipped = False
        self._steps = 0  # since before() or after(), whichever came last
        self._unseen = 0  # that no after() saw, since it last saw one
        self._misplaced = 0  # calls of before() that found such steps, since then
        self._idle = 0  # calls of after() without a step, since then
        self._sample: list[Tensor] = []  # weights when the idle calls began
        self._gradients: list[Tensor] = []  # those of the same weights then

    def before(self) -> None:
        """Note that a step is about to be made.

        Raises:
            RuntimeError: Repeatedly, steps were made outside of the two calls.
        """
        if self._begun and self._steps:
            self._unseen += self._steps
            self._misplaced += 1
            if self._misplaced > 1:  # an interruption leaves one
                raise MisuseError(
                    f"each optimizer.step() must lie between before_update() and after_update(), but the "
                    f"last {self._unseen} did not, so nothing is collected; call before_update(), step() "
                    "and after_update() in this order"
                )
        self._begun = self._is_open = True
        self._steps = 0

    def after(self) -> bool:
        """Return whether a step was made since `before`.

        Raises:
            RuntimeError: There was a step without `before`, or there were too many calls without a step.
        """
        if self._steps and not self._is_open:
            raise MisuseError(
                "before_update() must come before each optimizer.step(), and was not called since the last "
                "after_update(); call it there"
            )
        steps, self._steps, self._is_open = self._steps, 0, False
        if not steps:
            self._require_some_step()
            return False
        lost = self._unseen + steps - 1
        self._unseen = self._misplaced = self._idle = 0
        self._times_lost += bool(lost)
        if lost and not self._has_warned and (lost > 1 or self._times_lost > 1):  # an interruption loses one
            self._has_warned = True  # one warning is enough
            warnings.warn(
                f"the optimizer made {lost + 1} steps since the last after_update(), which count as one "
                "iteration; call before_update() and after_update() around each of them",
                stacklevel=3,
            )
        return not self._is_skipped

    def _note_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        # A fused optimizer is called even when GradScaler found infinities, and skips by itself.
        infinite = getattr(optimizer, "found_inf", None)
        self._is_skipped = infinite is not None and bool(torch.as_tensor(infinite).any())
        if not self._steps or not _has_nested_steps(type(optimizer)):
            self._steps += 1

    def _require_some_step(self) -> None:
        accumulation = getattr(self._wrapper, "gradient_state", None)  # accelerate's
        if accumulation is not None and not accumulation.sync_gradients:
            return
        self._idle += 1
        if self._idle == 1:
            smallest = self._smallest()
            self._sample = [own_part(parameter).detach().clone() for parameter in smallest]
            self._gradients = [gradient.clone() for gradient in _gradients_of(smallest)]
        if self._idle % UPDATES_WITHOUT_STEP:
            return
        called = f"after_update() was called {self._idle} times in a row without a step of the optimizer"
        smallest = self._smallest()
        if all(map(torch.equal, map(own_part, smallest), self._sample)):
            if self._idle < UPDATES_OF_ACCUMULATION and self._is_accumulating(_gradients_of(smallest)):
                return
            raise MisuseError(
                f"{called}, so nothing is collected; call after_update() after the optimizer's step(); if "
                "GradScaler skipped all of them, look for NaN or infinity in the gradients"
            )
        raise MisuseError(
            f"{called}, although the weights change, so nothing is collected; give Trajectory the optimizer "
            "whose step() the loop calls, a new Trajectory if it was replaced, and call step() outside of "
            "CUDA graphs, which run no hooks"
        )

    def _smallest(self) -> list[Tensor]:
        """Return a few small parameters, by which a change of the weights is noticed."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad]
        return sorted(parameters, key=Tensor.numel)[:SAMPLED_PARAMETERS]

    def _is_accumulating(self, gradients: list[Tensor]) -> bool:
        """Return whether gradients changed since the idle calls began, and are finite."""
        changed = len(gradients) != len(self._gradients) or not all(
            map(torch.equal, gradients, self._gradients)
        )
        return changed and all(map(is_finite, gradients))


def _gradients_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    gradients = (parameter.grad for parameter in parameters)
    return [own_part(g) for g in gradients if g is not None and g.layout == torch.strided]


def unwrap_optimizer(model: nn.Module, optimizer: Optimizer) -> Optimizer:
    """Return the torch optimizer, which alone has hooks, from inside accelerate's or similar wrappers.

    Raises:
        TypeError: The object is not an optimizer and wraps none.
        ValueError: It does not update the model, or splits weights or updates in an unsupported way.
    """
    require_known_split(model, optimizer)
    while not hasattr(optimizer, "_optimizer_step_post_hooks"):
        if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "optimizer"):
            raise InvalidTypeError(
                f"optimizer must be a torch optimizer, got {type(optimizer).__name__}; pass the "
                "torch.optim.Optimizer that updates the model"
            )
        optimizer = optimizer.optimizer
        require_known_split(model, optimizer)
    keep_parts_only(model)  # the optimizer does not have the parameters that a forward pass left unsharded
    updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not any(id(parameter) in updated for parameter in model.parameters()):
        raise InvalidValueError(
            f"the optimizer must update parameters of the model, but the {type(optimizer).__name__} has no "
            f"parameter of the {type(model).__name__}; construct it from model.parameters(), after anything "
            "that replaces them, as fully_shard does"
        )
    return optimizer


def _has_nested_steps(kind: type[Optimizer]) -> bool:
    """Return whether one call of `step()` may run hooks twice: in a subclass that calls super().step().

    Torch hooks the step of a class when an optimizer of it is first constructed.
    """
    hooked = [base for base in kind.__mro__ if getattr(vars(base).get("step"), "hooked", False)]
    return len(hooked) > 1


POINTS_LOOKED_AHEAD = 20
LEAST_LOOKED_AHEAD = 1_000
MOST_LOOKED_AHEAD = 50_000
LOW_SHARE = 0.25
"""Below this share of its range, a rate is low; a schedule that becomes low at least twice is cyclic."""
HIGH_SHARE = 0.2
"""The mean share of its range by which the rates of points may exceed low rates around them."""


def warn_of_high_rates(schedule: Schedule, collectors: Sequence[Collector]) -> None:
    """Warn if points would be collected at high rates although the schedule is low again and again.

    Only rates are compared, so the schedule may be any function. A point may lie one iteration before a low
    rate, as those of the authors' program do.
    """
    for collector in collectors:
        points = _points(collector, max(LEAST_LOOKED_AHEAD, 2 * getattr(schedule, "cycle", 0)))
        rates = _rates(schedule, points[-1] + 1) if points else []
        points = [point for point in points if point < len(rates)]
        if points and _mean_excess(rates, points) > HIGH_SHARE:
            shown = ", ".join(f"{rates[point - 1]:.3g}" for point in points[:5])
            name = "the schedule" if hasattr(schedule, "__qualname__") else schedule
            warnings.warn(
                f"{collector} collects its first points at the rates {shown}, although {name} goes down to "
                f"{min(rates):.3g}, where weights are best; give both the same cycle, and the collector the "
                "phase at which the rate is lowest",
                stacklevel=3,
            )


def _points(collector: Collector, least: int) -> list[int]:
    """Return the first iterations that need a low rate; of several in a row, as in a tail, only the last one.

    For a collector that needs every iteration the list is empty.
    """
    points: list[int] = []
    is_taken = collector.needs_low_rate(1)
    for iteration in range(1, MOST_LOOKED_AHEAD):
        was_taken, is_taken = is_taken, collector.needs_low_rate(iteration + 1)
        if was_taken and not is_taken:
            points.append(iteration)
        if iteration >= least and (len(points) >= POINTS_LOOKED_AHEAD or (is_taken and not points)):
            break
    return points


def _rates(schedule: Schedule, iterations: int) -> list[float]:
    rates: list[float] = []
    # A user's function may know only the iterations of a training; what came before is kept.
    with suppress(Exception):
        rates.extend(float(schedule(iteration)) for iteration in range(1, iterations + 1))
    return rates


def _mean_excess(rates: Sequence[float], points: Sequence[int]) -> float:
    """Return how far the rates of points exceed lower rates before and after them, relative to the range.

    It is 0 for a warm-up, for a decay, and for any schedule that is not cyclic.
    """
    low, high = min(rates), max(rates)
    level = low + LOW_SHARE * (high - low)
    if sum(one > level >= two for one, two in pairwise(rates)) < 2:
        return 0.0
    before = list(accumulate(rates, min))
    after = list(accumulate(reversed(rates), min))[::-1]
    excess = [min(rates[i - 1], rates[i]) - max(before[i], after[i - 1]) for i in points]
    return fmean(excess) / (high - low)


Batch = TypeVar("Batch")


class Trajectory:
    """Hooks into your training loop around each `optimizer.step()`.

    Call `before_update()` before and `after_update()` after every `optimizer.step()`. The start
    point is the model's weights at the first `before_update()`. A step that is skipped, as when
    `GradScaler` finds infinite gradients, does not count. If you have no loop of your own, use `follow`.

    Args:
        model: The model in training; DDP and torch.compile wrappers are looked through. The shards of an
            FSDP2 model are averaged one by one. Its members are put together when they are stored or
            requested, which all processes must do at once.
        optimizer: Any torch optimizer of the model's parameters, also as accelerate prepares it. The schedule
            gives the largest rate, and groups keep the ratios of their rates (of their initial rates, if a
            torch scheduler has changed them). A group that is added later has the ratio of its rate to the
            largest of the first groups, but at most 1.
        schedule: Learning rate for each iteration; None leaves the rates alone. A warning says if collectors
            would collect at high rates of a cyclic schedule.
        collectors: One collector or several, all without members; at most one may steer.
        overrides_scheduler: Whether a scheduler in the loop is to be overridden without a warning.

    Attributes:
        iteration: Updates so far.

    Raises:
        ValueError: The optimizer does not update the model, or two collectors steer.

    Example:
        >>> import torch, pfge
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        >>> schedule = pfge.Triangular(cycle=2, low=0.1, high=0.3)
        >>> collector = pfge.PFGE(cycle=2, period=4)
        >>> trajectory = pfge.Trajectory(model, optimizer, schedule, [collector, swa := pfge.SWA(cycle=2)])
        >>> for _ in range(8):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(4, 1)).square().mean().backward()
        ...     trajectory.before_update()  # sets the learning rate
        ...     optimizer.step()
        ...     trajectory.after_update()  # averages, records, restarts
        >>> trajectory.iteration, collector.iterations, swa.iterations
        (8, [4, 8], [8])
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: Schedule | None,
        collectors: Sequence[Collector] | Collector,
        *,
        overrides_scheduler: bool = False,
    ):
        require_schedule(schedule)
        collectors = as_collectors(collectors)
        steerers = [type(collector).__name__ for collector in collectors if collector.steers]
        if len(steerers) > 1:
            raise InvalidValueError(
                f"only one collector may steer a trajectory, got {' and '.join(steerers)}; "
                "give each its own Trajectory"
            )
        inner = unwrap_optimizer(model, optimizer)
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule
        self.collectors = collectors
        self.iteration = 0
        self._rates = GroupRates(
            inner, is_scheduled=schedule is not None, overrides_scheduler=overrides_scheduler
        )
        if schedule is not None:
            warn_of_high_rates(schedule, self.collectors)
        self._live = LiveWeights(model)
        self._begun = False
        self._mark = object()  # tells a collector which trajectory it belongs to
        self._watch = StepWatch(optimizer, inner)

    def __repr__(self) -> str:
        run = f"<{type(self.model).__name__}>, <{type(self.optimizer).__name__}>"
        return f"Trajectory({run}, {self.schedule!r}, {list(self.collectors)!r})"

    def before_update(self) -> None:
        """Set the learning rate of the coming iteration.

        Raises:
            ValueError: Training begins, and a collector has members of another training.
            RuntimeError: Steps were made outside of the two calls.
        """
        require_own_weights(self.model)
        if not self._begun:
            require_unused(self.collectors)
        self._watch.before()
        if self.schedule is not None:
            self._rates.warn_of_changes(self.iteration)
            self._rates.add_groups(begun=self._begun)
        if not self._begun:
            self._live.freeze()
            weights, buffers = self._live.view(), buffer_names(self.model)
            if self.collectors:
                require_wide(weights)
            frozen = frozen_batch_norm(self.model)
            for collector in self.collectors:
                collector.frozen_batch_norm = frozen
                collector.followed_by = self._mark
                collector.begin(weights, buffers)
            self._begun = True
        if self.schedule is not None:
            self._rates.set(self.schedule(self.iteration + 1))

    def after_update(self) -> None:
        """Show the new weights to every collector that is due, and restart if a collector requests it.

        Raises:
            ValueError: The weights are not finite.
            RuntimeError: A step had no `before_update()`; or no step was made in 20 calls in a row (1,000 if
                gradients are accumulated); or another trajectory has begun to use a collector.
        """
        if not self._begun:
            raise MisuseError("before_update() must come before the first optimizer.step(); call it there")
        if not self._watch.after():
            return
        self.iteration += 1
        due = [collector for collector in self.collectors if collector.due(self.iteration)]
        if not due:
            return
        require_own_collectors(due, self._mark)
        weights = self._live.view()
        require_finite(due[0], self.iteration, self._live.find_non_finite())  # once for all of them
        # All collect before any of them restarts the path.
        for restart in [collector.collect(self.iteration, weights) for collector in due]:
            if restart is not None:
                self._restart(restart, weights)

    @property
    def non_finite_buffers(self) -> frozenset[str]:
        """Names of buffers that held NaN or infinity at the start, such as masks, and may do so later."""
        return self._live.unchecked

    def state_dict(self, *, training: bool = True) -> dict[str, Any]:
        """Return all that resuming needs: weights, optimizer, iteration, collectors; live tensors.

        `save_checkpoint` writes it; under FSDP2 all processes must call it. The loop must save its random
        state and the order of its data itself.

        Args:
            training: Whether weights and optimizer are included; False if a trainer restores them.
        """
        if training:
            require_own_weights(self.model)
        state = {
            "iteration": self.iteration,
            "begun": self._begun,
            "rate_ratios": self._rates.ratios,
            "collectors": [[str(collector), collector.state_dict()] for collector in self.collectors],
        }
        if frozen := sorted({name for c in self.collectors for name in c.frozen_batch_norm}):
            state["frozen_batch_norm"] = frozen
        if self.non_finite_buffers:
            state["non_finite_buffers"] = sorted(self.non_finite_buffers)
        if training:
            state |= {"weights": view_weights(self.model), "optimizer": self.optimizer.state_dict()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; the next update is the same bit for bit as in the run that saved it.

        Raises:
            ValueError: The collectors or the model differ from the state.
        """
        names = [str(collector) for collector in self.collectors]
        found = [name for name, _ in state["collectors"]]
        if names != found:
            raise InvalidValueError(
                f"the state is of the collectors {found}, got {names}; construct the same collectors"
            )
        if "weights" in state:
            self._load_training(state["weights"], state["optimizer"])
        self.iteration = state["iteration"]
        self._rates.resume(state["rate_ratios"])
        self._begun = state["begun"]
        self._watch.reset(begun=self._begun)
        if self._begun:
            # The names at the start: a buffer that became infinite since then must still be found.
            self._live.freeze(unchecked=state.get("non_finite_buffers", ()))
            for collector, (_, collected) in zip(self.collectors, state["collectors"], strict=True):
                collector.frozen_batch_norm = frozenset(state.get("frozen_batch_norm", ()))
                collector.followed_by = self._mark
                share_narrow(collected)
                collector.load_state_dict(collected)

    def _load_training(self, weights: Weights, optimizer: dict[str, Any]) -> None:
        load_weights(self.model, weights)
        self.optimizer.load_state_dict(optimizer)
        for parameter, kept in self.optimizer.state.items():
            for key, value in kept.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    kept[key] = in_memory_order_of(parameter, value)

    def _restart(self, restart: Restart, seen: Weights) -> None:
        weights, live = restart.weights, self._live.live()
        # Frozen parameters are not written: the view has their shared copies only while they are unchanged.
        frozen = {name for name in live if weights.get(name) is seen[name]}
        copy_into(without(live, frozen), without(weights, frozen))
        if restart.clear_momentum:
            for parameter in self.model.parameters():
                self.optimizer.state.pop(parameter, None)


def follow(
    trajectory: Trajectory,
    batches: Iterable[Batch],
    loss: Callable[[nn.Module, Batch], Tensor],
    *,
    iterations: int,
    on_update: Callable[[int, Tensor], None] | None = None,
    backward: Callable[[Tensor], object] = Tensor.backward,
) -> None:
    """Train for a number of further updates: forward, backward, step, for one batch after another.

    Args:
        trajectory: The path to continue.
        batches: A DataLoader, a list or the like, read again from its start as often as needed.
        loss: Returns the scalar to minimize from the model and a batch.
        iterations: Number of updates.
        on_update: Called after each update with its iteration and its loss, still a tensor.
        backward: Computes the gradients from the loss, for engines with a backward of their own.

    Raises:
        ValueError: `batches` is an iterator that ended before the last iteration.

    Example:
        >>> import torch, pfge
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters())
        >>> collector = pfge.FGE(cycle=2)
        >>> trajectory = pfge.Trajectory(model, optimizer, pfge.Constant(0.1), [collector])
        >>> batches = [(torch.ones(4, 1), torch.zeros(4, 1))]
        >>> def loss(model, batch):
        ...     inputs, targets = batch
        ...     return torch.nn.functional.mse_loss(model(inputs), targets)
        >>> pfge.follow(trajectory, batches, loss, iterations=6)
        >>> collector.iterations
        [2, 4, 6]
    """
    if trajectory.iteration == 0:
        _warn_of_unused(trajectory, iterations)
    model, optimizer = trajectory.model, trajectory.optimizer
    model.train()
    endless = repeat_batches(batches)
    for _ in range(iterations):
        value = loss(model, next(endless))
        optimizer.zero_grad()
        backward(value)
        trajectory.before_update()
        optimizer.step()
        trajectory.after_update()
        if on_update is not None:
            on_update(trajectory.iteration, value.detach())


def _warn_of_unused(trajectory: Trajectory, iterations: int) -> None:
    for collector in trajectory.collectors:
        if unused := iterations - collector.last_used_iteration(iterations):
            warnings.warn(
                f"{collector} does not use the last {unused} of {iterations} iterations unless the "
                "trajectory is followed further; choose a multiple of its period",
                stacklevel=3,
            )
