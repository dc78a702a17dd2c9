"""Average checkpoints of any trainer, and measure the result on data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pfge.ensemble import Ensemble
from pfge.lab.data import take
from pfge.lab.evaluation.evaluate import evaluate_on
from pfge.lab.session import Session
from pfge.lab.training.checkpoint_files import (
    average_checkpoints,
    fit_to_model,
    read_as_member,
    read_checkpoint,
    require_like_first,
)
from pfge.rounding import is_lower, lowest_first
from pfge.storage.ensemble_folder import LazyMembers
from pfge.weights import Weights, interpolate

IMAGES = 2000
"""Number of training examples for the loss between two checkpoints."""
HIGH_BARRIER = 0.5
"""Relative rise of the training loss half-way from which two checkpoints lie in different valleys."""
SEED = 0
"""Seed of the batches for refreshing BatchNorm."""


@dataclass(frozen=True)
class Barrier:
    """The training loss between two checkpoints.

    Attributes:
        first: The first checkpoint.
        second: The second checkpoint.
        ends: Mean of their losses.
        middle: Loss half-way, with fresh BatchNorm statistics.
    """

    first: Path
    second: Path
    ends: float
    middle: float

    @property
    def is_high(self) -> bool:
        """Whether the two lie in different valleys, where their mean is worse than either."""
        # A loss such as the NLL of a regression may be negative.
        return self.middle > self.ends + HIGH_BARRIER * abs(self.ends) + 0.05


@dataclass(frozen=True)
class Average:
    """An averaged model.

    Attributes:
        ensemble: The model, an ensemble of one.
        used: The averaged checkpoints, in the order in which they were added.
        metrics: Its metrics on validation data.
        each: The metrics of each given checkpoint.
        barriers: Barriers between adjacent checkpoints.
    """

    ensemble: Ensemble
    used: Sequence[Path]
    metrics: Mapping[str, float]
    each: Sequence[Mapping[str, float]]
    barriers: Sequence[Barrier]


def average_with_data(session: Session, paths: Sequence[Path], *, greedy: bool = False) -> Average:
    """Average checkpoints, refresh BatchNorm, and measure the mean and each checkpoint.

    Args:
        session: The data and the model.
        paths: The checkpoints.
        greedy: Add them in the order of their validation NLL, and keep only those that lower it (a greedy
            soup: Wortsman et al., "Model soups", ICML 2022).
    """
    ensemble = pooled_checkpoints(session, paths)
    data = session.validation_for("measuring checkpoints")
    each = evaluate_on(session, ensemble, data, "each checkpoint").members
    barriers = find_barriers(session, ensemble, paths)
    if greedy:
        return _average_greedily(session, paths, each, barriers)
    mean = _refreshed(session, paths)
    return Average(mean, paths, _measure(session, mean), each, barriers)


def pooled_checkpoints(session: Session, paths: Sequence[Path]) -> Ensemble:
    """Return the checkpoints as an ensemble; each keeps the BatchNorm statistics of its own training."""
    members = checkpoint_members(paths, _reader(session))
    return session.make_ensemble(members, method=f"{len(paths)} checkpoints")


def checkpoint_members(
    paths: Sequence[Path], read: Callable[[Path], Weights] = read_as_member
) -> LazyMembers:
    """Return the weights of checkpoints in the types of the first; each is read when it is used.

    Args:
        paths: The checkpoints.
        read: Returns the weights of a checkpoint.

    Raises:
        StorageError: A checkpoint, when it is read, differs from the first in a name or shape, or has values
            that the types of the first cannot hold.
    """
    first = {name: tensor.to("meta") for name, tensor in read(paths[0]).items()}

    def read_one(index: int) -> Weights:
        weights = read(paths[index])
        require_like_first(first, weights, paths[0], paths[index])
        return {name: tensor.to(first[name].dtype) for name, tensor in weights.items()}

    return LazyMembers(len(paths), read_one)


def _reader(session: Session) -> Callable[[Path], Weights]:
    """Return a function that reads a checkpoint under the names of the experiment's model."""
    model = session.build_model()
    return lambda path: fit_to_model(read_checkpoint(path), model, path)


def find_barriers(session: Session, ensemble: Ensemble, paths: Sequence[Path]) -> list[Barrier]:
    """Return the training loss between adjacent checkpoints."""
    train = session.splits.train
    train = take(train, min(IMAGES, len(train)), SEED, part="training data")
    ends = [m["nll"] for m in evaluate_on(session, ensemble, train, "training loss").members]
    middles = LazyMembers(
        len(paths) - 1, lambda i: interpolate(ensemble.members[i], ensemble.members[i + 1], 0.5)
    )
    if not len(middles):
        return []
    fresh = session.refresh_batch_norm(session.make_ensemble(middles), SEED, "BatchNorm half-way")
    losses = [m["nll"] for m in evaluate_on(session, fresh, train, "half-way").members]
    return [
        Barrier(paths[i], paths[i + 1], (ends[i] + ends[i + 1]) / 2, loss) for i, loss in enumerate(losses)
    ]


def _average_greedily(
    session: Session, paths: Sequence[Path], each: Sequence[Mapping[str, float]], barriers: Sequence[Barrier]
) -> Average:
    order = lowest_first(range(len(paths)), key=lambda index: each[index]["nll"])
    used = [paths[order[0]]]
    # The best checkpoint alone keeps the BatchNorm statistics of its own training.
    best, metrics = _as_average(session, _reader(session)(used[0]), 1), each[order[0]]
    for index in order[1:]:
        candidate = _refreshed(session, [*used, paths[index]])
        found = _measure(session, candidate)
        if is_lower(found["nll"], metrics["nll"]):
            used, best, metrics = [*used, paths[index]], candidate, found
    return Average(best, used, metrics, each, barriers)


def name_of_average(count: int) -> str:
    """Return a readable name for the mean of some checkpoints."""
    return f"average of {count} checkpoint{'s' * (count > 1)}"


def _as_average(session: Session, weights: Weights, count: int) -> Ensemble:
    return session.make_ensemble([weights], method=name_of_average(count))


def _refreshed(session: Session, paths: Sequence[Path]) -> Ensemble:
    mean = _as_average(session, average_checkpoints(paths, read=_reader(session)), len(paths))
    return session.refresh_batch_norm(mean, SEED, f"BatchNorm of the mean of {len(paths)}")


def _measure(session: Session, ensemble: Ensemble) -> dict[str, float]:
    return evaluate_on(session, ensemble, session.splits.validation, "mean on validation").members[0]
