"""Measure an ensemble on a data set: pooled, each member alone, and as it grows."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from pfge.calibration import Calibration
from pfge.ensemble import Ensemble
from pfge.lab.data import DataPart
from pfge.lab.evaluation.evaluations import Evaluation, PooledEvaluation
from pfge.lab.evaluation.in_chunks import Fitted, evaluate_in_chunks, fit_in_chunks
from pfge.lab.evaluation.pooled_members import PooledMembers
from pfge.lab.session import Session
from pfge.metrics.example_scores import ExampleScores


def predict(session: Session, ensemble: Ensemble, data: DataPart, name: str) -> Iterator[Tensor]:
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
    session: Session,
    ensemble: Ensemble,
    data: DataPart,
    name: str,
    *,
    last: int | None = None,
    fit_temperatures: bool = False,
    after: Evaluation | None = None,
) -> Evaluation:
    """Return the results of an ensemble on a part of the data, and show progress.

    Predictions for the positions of an example are too large to keep, so that then scores are. Every process
    evaluates all of them.

    Args:
        session: The experiment.
        ensemble: What to measure, on the engine's device.
        data: The examples.
        name: What to call this work where progress is shown.
        last: How many of the last members are also pooled by themselves.
        fit_temperatures: Find the temperatures on these examples.
        after: The evaluation of other examples, whose temperatures are taken.
    """
    if not session.has_positions:
        predictions = predict(session, ensemble, data, name)
        temperatures = after.member_temperatures if after else None
        return evaluate(
            ensemble,
            predictions,
            data.labels.cpu(),
            last=last,
            member_temperatures=temperatures,
            fit_temperatures=fit_temperatures,
        )
    fitted = None
    if fit_temperatures:
        fitted = fit_in_chunks(ensemble, session.in_batches(data), data.labels.cpu(), last)
    elif after:
        of_last = after.last.fit() if after.last else 1.0
        fitted = Fitted(after.member_temperatures, after.pooled.fit(), of_last)
    with session.reporter.task(name, len(data)) as advance:
        return evaluate_in_chunks(
            ensemble,
            session.in_batches(data),
            last=last,
            fitted=fitted,
            on_examples=lambda done: advance(done, ""),
        )


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

    def put_together(
        pool: PooledMembers, scores: ExampleScores, metrics: dict[str, float]
    ) -> PooledEvaluation:
        return PooledEvaluation(
            task, targets, pool.predictions, pool.at_temperatures, scores, metrics | pool.differences()
        )

    pooled = PooledMembers(task, ensemble.temperatures, targets)
    pooled_last = PooledMembers(task, targets=targets)
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
        of_last = put_together(pooled_last, scores_of_last, task.summarize(scores_of_last))
    return Evaluation(put_together(pooled, scores, growing[-1]), of_last, members, growing, temperatures)
