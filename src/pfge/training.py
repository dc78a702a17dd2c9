"""The plain training loop over a trajectory."""

import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar

from torch import Tensor, nn

from pfge.forward import repeat_batches
from pfge.trajectory import Trajectory

Batch = TypeVar("Batch")


def follow(
    trajectory: Trajectory,
    batches: Iterable[Batch],
    loss: Callable[[nn.Module, Batch], Tensor],
    *,
    iterations: int,
    on_update: Callable[[int, Tensor], None] | None = None,
    backward: Callable[[Tensor], object] = Tensor.backward,
) -> None:
    """Train for a number of updates more.

    Args:
        trajectory: The path to go on with.
        batches: Read again from its start as often as needed, as a DataLoader or a list can be.
        loss: Returns the scalar to minimise from the model and a batch.
        iterations: How many updates to make.
        on_update: Called after each update with its iteration and its loss, still a tensor.
        backward: Computes the gradients, for engines that have their own way.
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
