"""Training along a path that continues bit for bit after an interruption."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pfge.collectors import Collector, Restart
from pfge.errors import InvalidValueError
from pfge.forward import call_model
from pfge.lab.data import Batch, TrainingBatches
from pfge.lab.data.base import derive_seed, seed_torch
from pfge.lab.session import Session
from pfge.storage.checkpoint import load_checkpoint, save_checkpoint
from pfge.trajectory import Trajectory, follow
from pfge.weights import Weights, find_non_finite, view_weights, without


class Fork(Collector):
    """Run a collector up to its first restart, which is recorded and not carried out.

    Up to its first restart PFGE is on the path of the listeners, so one run serves all of them. From there a
    second trajectory continues with the state that `state` returns.

    Args:
        collector: The collector that restarts.
        is_recorded: Whether an earlier run recorded the first restart. If so, the collector is not used,
            because the second trajectory may already be using its members.
    """

    def __init__(self, collector: Collector, *, is_recorded: bool = False):
        self.collector = collector
        self._restart: Restart | None = None
        self._is_recorded = is_recorded
        self._left = is_recorded

    def begin(self, weights: Weights, buffers: Collection[str] = ()) -> None:
        """Begin the collector."""
        if not self._is_recorded:
            self.collector.begin(weights, buffers)

    def due(self, iteration: int) -> bool:
        """Return whether the collector needs these weights; after its first restart it needs no more."""
        return not self._left and self.collector.due(iteration)

    def needs_low_rate(self, iteration: int) -> bool:  # noqa: ARG002
        """Return False: the second trajectory has the collector itself and warns of high rates."""
        return False

    def collect(self, iteration: int, weights: Weights) -> None:
        """Pass the weights to the collector, and record its first restart."""
        self._restart = self.collector.observe(iteration, weights)
        self._left = self._restart is not None

    def state(self, shared: Trajectory) -> dict[str, Any] | None:
        """Return the start state of the second trajectory if the shared one has just reached it, or None."""
        if self._restart is None:
            return None
        restart, self._restart = self._restart, None
        state = shared.state_dict()
        optimizer = state["optimizer"]
        if restart.clear_momentum:
            optimizer = {**optimizer, "state": {}}
        collectors = [[str(self.collector), self.collector.state_dict()]]
        return {**state, "weights": restart.weights, "optimizer": optimizer, "collectors": collectors}

    def members(self) -> Sequence[Weights]:
        """Return the members that the collector has so far."""
        return self.collector.members()

    @property
    def iterations(self) -> Sequence[int | None]:
        """The iteration of each member."""
        return self.collector.iterations

    def last_used_iteration(self, iterations: int) -> int:
        """Return the collector's own answer: the second trajectory uses the later iterations."""
        return self.collector.last_used_iteration(iterations)

    def state_dict(self) -> dict[str, Any]:
        """Return the state needed to resume."""
        return {"left": self._left, "collector": self.collector.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        if not self._is_recorded:
            self._left = state["left"]
            self.collector.load_state_dict(state["collector"])

    def __repr__(self) -> str:
        return f"Fork({self.collector})"


@dataclass(frozen=True)
class Training:
    """The end, the files and the seed of a path that can be interrupted.

    Attributes:
        name: Name of the path in progress displays and in the log.
        seed: Seed of the random numbers in forward passes, such as those of dropout.
        iterations: The last iteration.
        checkpoint: The checkpoint file.
        start: A checkpoint to start from while `checkpoint` does not exist.
    """

    name: str
    seed: int
    iterations: int
    checkpoint: Path
    start: Path | None = None


def train_resumable(
    session: Session,
    trajectory: Trajectory,
    source: TrainingBatches,
    training: Training,
    on_update: Callable[[], None] | None = None,
) -> None:
    """Train to the last iteration, from the checkpoint if it exists, and write a checkpoint at the end.

    A batch and the random numbers of a forward pass are functions of the seed and the iteration, so a killed
    run continues bit for bit.

    Args:
        session: The experiment.
        trajectory: The path, at its start.
        source: Training batches by iteration.
        training: The end, the files and the seed of the path.
        on_update: Called after each update, before its checkpoint is written.

    Raises:
        ValueError: The weights are not finite; the last checkpoint stays.
    """
    engine, checkpoint_seconds = session.engine, session.experiment.engine.checkpoint_seconds
    name, iterations, checkpoint = training.name, training.iterations, training.checkpoint
    # Before loading: wrapping may change the type of the weights, in which the optimizer's state is loaded.
    model = engine.wrap(trajectory.model, trajectory.optimizer)
    found = next((file for file in (checkpoint, training.start) if file and file.exists()), None)
    if found is not None:
        trajectory.load_state_dict(load_checkpoint(found))
    if trajectory.iteration >= iterations:
        return
    if found == checkpoint:
        session.reporter.say(f"{name}: continues from iteration {trajectory.iteration:,} of {iterations:,}")
    log = session.open_log(name)
    process = engine.rank_and_world_size[0]
    last_saved = time.monotonic()

    def loss(_: nn.Module, batch: Batch) -> Tensor:
        seed_torch(derive_seed(training.seed, "forward", trajectory.iteration + 1, process))
        outputs = call_model(model, batch)
        try:
            return session.task.loss(outputs, batch[1])
        except IndexError as error:
            raise InvalidValueError(
                f"targets must be among the classes that the model has outputs for, got targets "
                f"{list(batch[1].shape)} for outputs {list(outputs.shape)}: {error}; correct the targets, "
                "or set ignore_index in task.options"
            ) from None

    def save() -> None:
        nonlocal last_saved
        checked = without(view_weights(trajectory.model), trajectory.non_finite_buffers)
        if (tensor := find_non_finite(checked)) is not None:
            # A checkpoint would replace the only one from which training can continue.
            raise InvalidValueError(
                f"{name}: {tensor} holds NaN or infinity at iteration {trajectory.iteration}, so no "
                "checkpoint is written; lower the learning rate, or look for NaN in the inputs and targets, "
                "and give another --out"
            )
        if engine.is_first:
            save_checkpoint(checkpoint, trajectory.state_dict())
        last_saved = time.monotonic()

    with session.reporter.task(name, iterations) as advance:

        def after(iteration: int, value: Tensor) -> None:
            if on_update is not None:
                on_update()
            if iteration == iterations or time.monotonic() - last_saved > checkpoint_seconds:
                save()
            if iteration == iterations or iteration % 10 == 0:
                rate = trajectory.optimizer.param_groups[0]["lr"]
                advance(iteration, f"loss {value.item():.4f}  rate {rate:.2g}{_members(trajectory)}")
                if log is not None:
                    log.log_metrics({"loss": value.item(), "rate": rate}, iteration)

        follow(
            trajectory,
            source.starting_after(trajectory.iteration),
            loss,
            iterations=iterations - trajectory.iteration,
            on_update=after,
            backward=engine.backward,
        )
    if log is not None:
        log.finalize("success")
    engine.wait_for_all()


def _members(trajectory: Trajectory) -> str:
    """Return the number of members so far, of the collector that has most."""
    counts = [sum(i is not None for i in c.iterations) for c in trajectory.collectors]
    return f"  members {max(counts)}" if counts else ""
