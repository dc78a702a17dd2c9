"""Measure an ensemble on a data set: pooled, each member alone, and as it grows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pfge.calibration import Calibration
from pfge.ensemble import Ensemble
from pfge.lab.data import Images
from pfge.lab.evaluation.pooled_members import PooledMembers
from pfge.lab.session import Session
from pfge.metrics.example_scores import ExampleScores


@dataclass(frozen=True)
class PooledEvaluation:
    """The results of several pooled members on one part of the data.

    Attributes:
        predictions: Pooled, in the precision of the pool.
        at_temperatures: Those of members each at its own temperature.
        scores: Of each example.
        metrics: All of the task's, and how much the members differ.
    """

    predictions: Tensor
    at_temperatures: Tensor
    scores: ExampleScores
    metrics: dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """The results of an ensemble on one part of the data."""

    targets: Tensor
    pooled: PooledEvaluation
    last: PooledEvaluation | None
    members: list[dict[str, float]]
    growing: list[dict[str, float]]
    member_temperatures: list[Calibration]


def predict(session: Session, ensemble: Ensemble, data: Images, name: str) -> Iterator[Tensor]:
    """Yield each member's predictions on a part of the data, and show progress.

    Every process predicts its part of the data; all get the whole.

    Args:
        session: The experiment.
        ensemble: What predicts, on the engine's device.
        data: The examples.
        name: What to call this work where progress is shown.
    """
    number, count = session.engine.share
    chosen = torch.arange(number, len(data), count)
    source = session.in_batches(data if count == 1 else data.select(chosen))
    with session.reporter.task(name, len(ensemble)) as advance:
        for done, part in enumerate(ensemble.predict_each(source), 1):
            whole = part.new_zeros(len(data), *part.shape[1:])
            whole[chosen] = part
            yield session.engine.sum_over_processes(whole).cpu()
            advance(done, "")


def evaluate_on(
    session: Session, ensemble: Ensemble, data: Images, name: str, **options: Any
) -> "Evaluation":
    """Return the results of an ensemble on a part of the data; the options are those of `evaluate`."""
    return evaluate(ensemble, predict(session, ensemble, data, name), data.labels.cpu(), **options)


def evaluate(
    ensemble: Ensemble,
    predictions: Iterable[Tensor],
    targets: Tensor,
    *,
    last: int | None = None,
    member_temperatures: Sequence[Calibration] | None = None,
    fit_temperatures: bool = False,
) -> Evaluation:
    """Return the results of all members, of the last few, of each, and of the first 1, 2, ... members.

    Beyond the pooled predictions one member's are in memory, whatever the number of members.

    Args:
        ensemble: Whose members predicted.
        predictions: Each member's.
        targets: The true answer of each example.
        last: How many of the last members are also pooled by themselves.
        member_temperatures: Of each member, for the pool at temperatures; 1 if None.
        fit_temperatures: Find them on these predictions instead.
    """
    task = ensemble.task
    pooled, pooled_last = PooledMembers(task, ensemble.temperatures.pooled), PooledMembers(task)
    temperatures = list(member_temperatures or [])
    members, growing = [], []
    for index, member in enumerate(predictions, 1):
        if len(temperatures) < index:
            temperatures.append(task.fit_calibration(member, targets) if fit_temperatures else 1.0)
        pooled.add(member, temperatures[index - 1])
        if last and index > len(ensemble) - last:
            pooled_last.add(member, temperatures[index - 1])
        members.append(task.summarize(task.score(member, targets)))
        scores = task.score(pooled.predictions, targets)
        growing.append(task.summarize(scores))
    of_last = None
    if last:
        scores_of_last = task.score(pooled_last.predictions, targets)
        of_last = _put_together(pooled_last, scores_of_last, task.summarize(scores_of_last))
    return Evaluation(
        targets, _put_together(pooled, scores, growing[-1]), of_last, members, growing, temperatures
    )


def _put_together(
    members: PooledMembers, scores: ExampleScores, metrics: dict[str, float]
) -> PooledEvaluation:
    return PooledEvaluation(
        members.predictions, members.at_temperatures, scores, metrics | members.differences()
    )
