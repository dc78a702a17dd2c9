"""Train along a trajectory, continuing after interruptions from regular checkpoints."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from pfge.finite import find_non_finite
from pfge.forward import call_model
from pfge.frozen import without
from pfge.lab.data import Batch, TrainingSource
from pfge.lab.data.seeding import derive_seed, seed_torch
from pfge.lab.session import Session
from pfge.storage.checkpoint import load_checkpoint, save_checkpoint
from pfge.trajectory import Trajectory, follow
from pfge.weights import view_weights


@dataclass(frozen=True)
class Training:
    """A piece of training that can be interrupted.

    Attributes:
        name: What to call it where progress is shown and in the log.
        seed: Of the random numbers in forward passes, such as dropout's.
        iterations: Where the path ends.
        checkpoint: The file.
        start: A checkpoint to begin from while there is none of this path.
    """

    name: str
    seed: int
    iterations: int
    checkpoint: Path
    start: Path | None = None


def train_resumable(
    session: Session,
    trajectory: Trajectory,
    source: TrainingSource,
    training: Training,
    on_update: Callable[[], None] | None = None,
) -> None:
    """Train up to an iteration, from the checkpoint if there is one, and leave one at the end.

    A batch and the random numbers of a forward pass depend on the seed and the iteration alone, so a
    run that was killed continues bit for bit as if it had not been.

    Args:
        session: The experiment.
        trajectory: The path, at its start.
        source: Batches by iteration.
        training: Where it ends, and where its checkpoint is.
        on_update: Called after each update, before a checkpoint of it.

    Raises:
        ValueError: The weights are not finite; the checkpoint before stays.
    """
    engine, checkpoint_seconds = session.engine, session.experiment.engine.checkpoint_seconds
    name, iterations, checkpoint = training.name, training.iterations, training.checkpoint
    # First, because it may change the type of the weights, and the optimizer's state is loaded in that type.
    model = engine.wrap(trajectory.model, trajectory.optimizer)
    found = next((file for file in (checkpoint, training.start) if file and file.exists()), None)
    if found is not None:
        trajectory.load_state_dict(load_checkpoint(found))
    if trajectory.iteration >= iterations:
        return
    if found == checkpoint:
        session.reporter.say(f"{name}: continues from iteration {trajectory.iteration:,} of {iterations:,}")
    log = session.open_log(name)
    process = engine.share[0]
    last_saved = time.monotonic()

    def loss(_: nn.Module, batch: Batch) -> Tensor:
        seed_torch(derive_seed(training.seed, "forward", trajectory.iteration + 1, process))
        outputs = call_model(model, batch)
        try:
            return session.task.loss(outputs, batch[1])
        except IndexError as error:
            raise ValueError(
                f"targets must be among the classes that the model has outputs for, got targets "
                f"{list(batch[1].shape)} for outputs {list(outputs.shape)}: {error}; correct the targets, "
                "or set ignore_index in task.options"
            ) from None

    def save() -> None:
        nonlocal last_saved
        checked = without(view_weights(trajectory.model), trajectory.non_finite_buffers)
        if (tensor := find_non_finite(checked)) is not None:
            # Written, it would replace the only checkpoint from which training can continue.
            raise ValueError(
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
    """Return how many members there are so far, of the collector that took most points of this path."""
    counts = [sum(i is not None for i in c.iterations) for c in trajectory.collectors]
    return f"  members {max(counts)}" if counts else ""
