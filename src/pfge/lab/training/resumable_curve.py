"""Fit a curve, continuing after interruptions, and trace it."""

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import SGD

from pfge.connectivity.curves import Curve
from pfge.connectivity.fitting import fit_curve
from pfge.connectivity.tracing import CurveTrace, trace_curve
from pfge.lab.data import Batch, take
from pfge.lab.data.seeding import derive_seed, generator, seed_torch
from pfge.lab.session import Session
from pfge.metrics.scores import score_examples
from pfge.schedules import pretraining_schedule
from pfge.storage.checkpoint import load_checkpoint, save_checkpoint
from pfge.tasks.classification import require_classification


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
