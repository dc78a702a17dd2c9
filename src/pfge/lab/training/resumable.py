"""Training that continues bit for bit after an interruption: paths and curves."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from pfge.collectors import Collector, Restart
from pfge.connectivity.curves import Curve
from pfge.connectivity.fitting import CurveTrace, fit_curve, trace_curve
from pfge.errors import InvalidValueError
from pfge.forward import call_model
from pfge.lab.data import Batch, TrainingBatches, take
from pfge.lab.data.base import derive_seed, generator, seed_torch
from pfge.lab.session import Session
from pfge.metrics.scores import score_examples
from pfge.schedules import pretraining_schedule
from pfge.storage.checkpoint import load_checkpoint, save_checkpoint
from pfge.tasks.classification import require_classification
from pfge.trajectory import Trajectory, follow
from pfge.weights import Weights, find_non_finite, view_weights, without


class Fork(Collector):
    """Observe for a collector that restarts, up to its first restart, which is recorded and not carried out.

    Until PFGE's first restart its path is that of the listeners, so one run serves them all; from
    there a second trajectory continues with the state that `state` gives.

    Args:
        collector: The one that restarts.
        is_recorded: Whether its first restart was recorded before. Then the collector is not used at all,
            because the second trajectory may be under way.
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
        """Return whether the collector needs these weights; it needs none after its first restart."""
        return not self._left and self.collector.due(iteration)

    def needs_low_rate(self, iteration: int) -> bool:  # noqa: ARG002
        """Return False: the second trajectory, which has the collector itself, warns of its points."""
        return False

    def collect(self, iteration: int, weights: Weights) -> None:
        """Pass the weights to the collector, and record its first restart."""
        self._restart = self.collector.observe(iteration, weights)
        self._left = self._restart is not None

    def state(self, shared: Trajectory) -> dict[str, Any] | None:
        """Return the state from which a second trajectory starts, if the shared one has just reached it."""
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
        """The iteration of each of them."""
        return self.collector.iterations

    def last_used_iteration(self, iterations: int) -> int:
        """Return the collector's own answer: the second trajectory uses the rest."""
        return self.collector.last_used_iteration(iterations)

    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs."""
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
    source: TrainingBatches,
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
            # Written, it would replace the only checkpoint from which training can continue.
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
    """Return how many members there are so far, of the collector that took most points of this path."""
    counts = [sum(i is not None for i in c.iterations) for c in trajectory.collectors]
    return f"  members {max(counts)}" if counts else ""


def fit_resumable(
    session: Session, curve: Curve, model: nn.Module, *, seed: int, stream: str, checkpoint: Path, name: str
) -> None:
    """Fit a curve, from the checkpoint if there is one of the same settings, and leave one at the end.

    A batch and the random numbers of a forward pass depend on the seed, the stream and the iteration alone,
    and so does t, so a fit that was killed continues bit for bit as if it had not been.

    Args:
        session: The experiment, whose settings in [connect] count.
        curve: At its start.
        model: Of the ends' architecture.
        seed: Of all random numbers.
        stream: Tells them from those of other curves of that seed.
        checkpoint: The file.
        name: What to call this work where progress is shown.
    """
    settings = session.experiment.connect
    source = session.batches(seed, f"batches of {stream}")
    iterations = settings.iterations(source.per_epoch)
    optimizer = SGD(curve.parameters(), lr=settings.rate, momentum=settings.momentum)
    places = generator(seed, f"t of {stream}")
    done = 0
    state = load_checkpoint(checkpoint) if checkpoint.exists() else None
    if state and state["settings"] == asdict(settings):
        done = state["iteration"]
        curve.load_state_dict(state["curve"])
        optimizer.load_state_dict(state["optimizer"])
        places.set_state(state["generator"])
    last_saved = time.monotonic()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        seed_torch(derive_seed(seed, f"forward of {stream}", done + 1))
        return session.task.loss(session.engine.forward(model, batch).float(), batch[1])

    with session.reporter.task(name, iterations) as advance, torch.random.fork_rng():

        def after(iteration: int, value: Tensor) -> None:
            nonlocal done, last_saved
            done = iteration
            if (
                done == iterations
                or time.monotonic() - last_saved > session.experiment.engine.checkpoint_seconds
            ):
                save_checkpoint(
                    checkpoint,
                    {
                        "settings": asdict(settings),
                        "iteration": done,
                        "curve": curve.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "generator": places.get_state(),
                    },
                )
                last_saved = time.monotonic()
            if done == iterations or done % 10 == 0:
                advance(done, f"loss {value.item():.4f}")

        fit_curve(
            curve,
            model,
            source.starting_after(done),
            loss,
            optimizer=optimizer,
            iterations=iterations - done,
            generator=places,
            weight_decay=settings.weight_decay,
            schedule=pretraining_schedule(iterations, settings.rate),
            after=done,
            on_update=after,
        )


def trace(session: Session, curve: Curve, model: nn.Module, *, seed: int, name: str) -> CurveTrace:
    """Return loss and error on training images, without augmentation, and on the test set along a curve."""
    settings, data = session.experiment.connect, session.experiment.data
    images = min(settings.images, len(session.splits.train))
    parts = {
        "train": take(session.splits.train, images, data.split_seed, part="training data"),
        "test": session.splits.test,
    }
    sources = {part: session.in_batches(chosen) for part, chosen in parts.items()}

    def evaluate(model: nn.Module) -> dict[str, float]:
        measured: dict[str, float] = {}
        for part, source in sources.items():
            measured[f"{part}_loss"], measured[f"{part}_error"] = _loss_and_error(session, model, source)
        return measured

    with session.reporter.task(name, settings.points) as advance:
        return trace_curve(
            curve,
            model,
            evaluate,
            settings.points,
            refresh=session.batch_norm_batches(seed, settings.images),
            forward=session.engine.forward,
            on_point=lambda done: advance(done, ""),
        )


def _loss_and_error(session: Session, model: nn.Module, source: Iterable[Batch]) -> tuple[float, float]:
    """Return the mean loss and the error rate."""
    task = session.task
    require_classification(task, "the error along a curve")
    loss = errors = 0.0
    count = 0
    for batch in source:
        outputs = session.engine.forward(model, batch).float()
        loss += task.loss(outputs, batch[1], reduction="sum").item()
        scores = score_examples(task.predictions(outputs).cpu(), batch[1].cpu())
        errors += (1 - scores.correct).sum().item()
        count += len(scores)
    return loss / count, errors / count
