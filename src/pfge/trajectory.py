"""One path of SGD through weight space: a schedule sets its rate, collectors watch it."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from statistics import fmean
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pfge.batch_norm import frozen_batch_norm
from pfge.collectors.applied import require_own_weights
from pfge.collectors.base import Collector, Restart, require_finite
from pfge.collectors.fge import FGE
from pfge.collectors.pfge import PFGE
from pfge.collectors.swa import SWA
from pfge.collectors.swag import SWAG
from pfge.finite import require_wide
from pfge.forward import repeat_batches
from pfge.frozen import share_narrow, without
from pfge.group_rates import GroupRates
from pfge.live_weights import LiveWeights
from pfge.schedules import CosineRestarts, Schedule, Triangular
from pfge.sharding import require_known_split
from pfge.weights import (
    Weights,
    buffer_names,
    copy_into,
    in_memory_order_of,
    load_weights,
    view_weights,
)

Batch = TypeVar("Batch")

UPDATES_WITHOUT_STEP = 20
"""Updates without any step after which the loop is taken to be wrong; `GradScaler` may skip the first few."""

SHORTEST_CYCLE = 7
POINTS_LOOKED_AHEAD = 20
ITERATIONS_LOOKED_AHEAD = 100_000
HIGH_SHARE = 0.25
"""The highest mean rate at which points may be taken: 0 is a schedule's lowest rate and 1 its highest."""


class Trajectory:
    """One path of training, as seen around each `optimizer.step()` of a loop that is the user's.

    Call `before_update()` before and `after_update()` after every `optimizer.step()`. The start
    point is the model's weights at the first `before_update()`. A step that never happened, as when
    `GradScaler` finds infinite gradients, does not count. `follow` is the loop for those who have none.

    Args:
        model: The model in training; DDP and torch.compile wrappers are looked through. One of FSDP2 is
            averaged in parts, and its members are put together when they are stored or asked for, so that
            all processes must ask for them.
        optimizer: Any torch optimizer. Its groups keep the ratios of their rates, or of their initial rates
            if a torch scheduler has changed them; the schedule gives the largest. A group that is added later
            has the ratio of its rate to the largest of the first ones, but at most 1.
        schedule: The learning rate for each iteration, or None to leave the rates alone.
        collectors: What watches the weights; at most one collector may steer.
        overrides_scheduler: Whether a scheduler in the loop is meant to be overridden. Otherwise a rate that
            changes between two updates causes a warning.

    Attributes:
        iteration: Updates so far.

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
        collectors: Sequence[Collector],
        *,
        overrides_scheduler: bool = False,
    ):
        steerers = [type(collector).__name__ for collector in collectors if collector.steers]
        if len(steerers) > 1:
            raise ValueError(
                f"only one collector may steer a trajectory, got {' and '.join(steerers)}; "
                "give each its own Trajectory"
            )
        require_known_split(model, optimizer)
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule
        self.collectors = tuple(collectors)
        self.iteration = 0
        self._rates = GroupRates(
            optimizer, is_scheduled=schedule is not None, overrides_scheduler=overrides_scheduler
        )
        self._warn_of_high_rates()
        self._live = LiveWeights(model)
        self._begun = False
        self._stepped = False
        self._updates_without_step: int | None = 0  # None once there was a step
        optimizer.register_step_post_hook(self._note_step)

    def __repr__(self) -> str:
        run = f"<{type(self.model).__name__}>, <{type(self.optimizer).__name__}>"
        return f"Trajectory({run}, {self.schedule!r}, {list(self.collectors)!r})"

    def before_update(self) -> None:
        """Set the learning rate of the coming iteration."""
        require_own_weights(self.model)
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
                collector.begin(weights, buffers)
            self._begun = True
        if self.schedule is not None:
            self._rates.set(self.schedule(self.iteration + 1))
        self._stepped = False

    def after_update(self) -> None:
        """Show the new weights to every collector that wants them, and restart if one says so."""
        if not self._begun:
            raise RuntimeError("before_update() must come before the first optimizer.step(); call it there")
        if not self._stepped:
            self._require_some_step()
            return
        self._stepped = False
        self.iteration += 1
        due = [collector for collector in self.collectors if collector.due(self.iteration)]
        if not due:
            return
        weights = self._live.view()
        require_finite(due[0], self.iteration, self._live.find_non_finite())  # once for all of them
        # All look at the path as it was before any of them bends it.
        for restart in [collector.take(self.iteration, weights) for collector in due]:
            if restart is not None:
                self._restart(restart, weights)

    @property
    def non_finite_buffers(self) -> frozenset[str]:
        """Names of buffers that held NaN or infinity at the start, as masks do, and so may do so later."""
        return self._live.unchecked

    def state_dict(self, *, training: bool = True) -> dict[str, Any]:
        """Return all that resuming needs: weights, optimizer, iteration, collectors; live tensors.

        `save_checkpoint` writes it; under FSDP2 all processes must call that. The random state of the loop
        and the order of its data are not in it: the loop must keep them itself.

        Args:
            training: Whether weights and optimizer are included; False where a trainer restores them.
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
        """Continue from a state; the next update is bit for bit that of the run which gave it.

        Raises:
            ValueError: The collectors or the model are not those of the state.
        """
        names = [str(collector) for collector in self.collectors]
        found = [name for name, _ in state["collectors"]]
        if names != found:
            raise ValueError(
                f"a trajectory resumes with the collectors it had, {found}, got {names}; "
                "construct the same ones"
            )
        if "weights" in state:
            self._load_training(state["weights"], state["optimizer"])
        self.iteration = state["iteration"]
        self._rates.resume(state["rate_ratios"])
        self._begun = state["begun"]
        self._stepped = False
        if self._begun:
            # Those of the start: what became infinite since then must still be found.
            self._live.freeze(unchecked=state.get("non_finite_buffers", ()))
            for collector, (_, collected) in zip(self.collectors, state["collectors"], strict=True):
                collector.frozen_batch_norm = frozenset(state.get("frozen_batch_norm", ()))
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
        # The model has these already. A shared copy is in the view only while the parameter is as it was.
        frozen = {name for name in live if weights.get(name) is seen[name]}
        copy_into(without(live, frozen), without(weights, frozen))
        if restart.clear_momentum:
            for parameter in self.model.parameters():
                self.optimizer.state.pop(parameter, None)

    def _warn_of_high_rates(self) -> None:
        # Weights follow the rate only within several iterations: in a shorter cycle any place is as good.
        schedule = self.schedule
        if not isinstance(schedule, Triangular | CosineRestarts) or schedule.cycle < SHORTEST_CYCLE:
            return
        cycle = [schedule(iteration) for iteration in range(1, schedule.cycle + 1)]
        low, high = min(cycle), max(cycle)
        for collector in self.collectors:
            if not isinstance(collector, SWA | FGE | PFGE | SWAG) or collector.cycle == 1:
                continue
            due = islice(filter(collector.due, range(1, ITERATIONS_LOOKED_AHEAD)), POINTS_LOOKED_AHEAD)
            taken = [schedule(iteration) for iteration in due]
            if taken and fmean(taken) > low + HIGH_SHARE * (high - low):
                shown = ", ".join(f"{rate:.3g}" for rate in taken[:5])
                warnings.warn(
                    f"{collector} takes its first points at the rates {shown}, although {schedule} goes "
                    f"down to {low:.3g}, and weights are best taken there; give both the same cycle, and "
                    "the collector the phase at which the rate is lowest",
                    stacklevel=3,
                )

    def _require_some_step(self) -> None:
        if self._updates_without_step is None:
            return
        self._updates_without_step += 1
        if self._updates_without_step == UPDATES_WITHOUT_STEP:
            raise RuntimeError(
                f"after_update() was called {UPDATES_WITHOUT_STEP} times, and the optimizer has not made a "
                f"step, so nothing is collected; give Trajectory the optimizer whose step() the loop calls, "
                "or the torch optimizer inside its wrapper, and call after_update() after step()"
            )

    def _note_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        # A fused optimizer is called even when GradScaler found infinities, and skips by itself.
        self._updates_without_step = None
        infinite = getattr(optimizer, "found_inf", None)
        self._stepped = infinite is None or not bool(torch.as_tensor(infinite).any())


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
        batches: Read again from its start as often as needed, as a DataLoader or a list can be.
        loss: Returns the scalar to minimize from the model and a batch.
        iterations: How many updates to make.
        on_update: Called after each update with its iteration and its loss, still a tensor.
        backward: Computes the gradients from the loss, for engines that do so in their own way.

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
        if unused := iterations - collector.last_use(iterations):
            warnings.warn(
                f"{collector} makes no use of the last {unused} of {iterations} iterations unless the "
                f"trajectory is followed further; choose a multiple of its period",
                stacklevel=3,
            )
