"""Measure an ensemble on a data set: pooled, each member alone, and as it grows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from pfge.calibration import UNSCALED, Calibration, Temperatures
from pfge.ensemble import Ensemble
from pfge.errors import InvalidValueError
from pfge.lab.data import DataPart
from pfge.lab.session import Session
from pfge.metrics.position_scores import PositionScores
from pfge.metrics.scores import ExampleScores
from pfge.tasks import MeanPool, Pool, Spread, Task


class PooledScores(Protocol):
    """The results of several pooled members."""

    @property
    def scores(self) -> ExampleScores:
        """Of each example."""

    @property
    def metrics(self) -> dict[str, float]:
        """All of the task's, and how much the members differ."""

    def fit(self) -> Calibration:
        """Return the temperature of the pooled prediction that suits these examples best."""

    def at(self, temperature: Calibration) -> ExampleScores:
        """Return the scores of each example at a temperature of the pooled prediction."""

    def at_member_temperatures(self) -> ExampleScores:
        """Return the scores of each example with each member at its own temperature."""


@dataclass(frozen=True)
class PooledEvaluation:
    """The results of several pooled members, with their predictions.

    Attributes:
        task: What the predictions mean.
        targets: The true answer of each example.
        predictions: Pooled, in the precision of the pool.
        at_temperatures: Those of members each at its own temperature.
        scores: Of each example.
        metrics: All of the task's, and how much the members differ.
    """

    task: Task
    targets: Tensor
    predictions: Tensor
    at_temperatures: Tensor
    scores: ExampleScores
    metrics: dict[str, float]

    def fit(self) -> Calibration:
        """Return the temperature of the pooled prediction that suits these examples best."""
        return self.task.fit_calibration(self.predictions, self.targets)

    def at(self, temperature: Calibration) -> ExampleScores:
        """Return the scores of each example at a temperature of the pooled prediction."""
        return self.task.score(self.task.calibrate(self.predictions, temperature), self.targets)

    def at_member_temperatures(self) -> ExampleScores:
        """Return the scores of each example with each member at its own temperature."""
        return self.task.score(self.at_temperatures, self.targets)


@dataclass(frozen=True)
class Evaluation:
    """The results of an ensemble on one part of the data.

    Attributes:
        pooled: Of all members.
        last: Of the last few, if they were asked for.
        members: Of each.
        growing: Of the first 1, 2, ... members.
        member_temperatures: Of each, as they were fitted or given.
    """

    pooled: PooledScores
    last: PooledScores | None
    members: list[dict[str, float]]
    growing: list[dict[str, float]]
    member_temperatures: list[Calibration]


class PooledMembers:
    """Predictions pooled as an ensemble pools them, and what the lab reports beside them.

    Args:
        task: What the predictions mean.
        temperatures: Those of the ensemble: of the pooled prediction, and the weights of its members.
        targets: The true answers, by which ignored positions do not count in differences; all count if None.
    """

    def __init__(self, task: Task, temperatures: Temperatures = UNSCALED, targets: Tensor | None = None):
        self.spread: Spread = task.spread() if targets is None else task.spread_at(targets)
        self._task = task
        self._temperatures = temperatures
        self._members = 0
        self._pool = task.pool()
        self._at_temperatures: Pool = _ShortMean() if isinstance(self._pool, MeanPool) else task.pool()

    def add(self, predictions: Tensor, temperature: Calibration = 1.0) -> None:
        """Add one more member's predictions.

        Args:
            predictions: As the member gives them.
            temperature: Its own, for the mean at temperatures.
        """
        weight = self._temperatures.weight_of(self._members)
        self._members += 1
        self._pool.add(predictions, weight)
        self.spread.add(predictions, weight)
        self._at_temperatures.add(self._task.calibrate(predictions, temperature))

    @property
    def predictions(self) -> Tensor:
        """The pooled prediction."""
        return self._task.calibrate(self.plain, self._temperatures.pooled)

    @property
    def plain(self) -> Tensor:
        """The pooled prediction without its temperature."""
        return self._pool.result()

    @property
    def at_temperatures(self) -> Tensor:
        """The pooled prediction of members each at its own temperature."""
        return self._at_temperatures.result()

    def differences(self) -> dict[str, float]:
        """Return how much the members differ, by name."""
        return self.spread.metrics(self.plain)


class _ShortMean(MeanPool):
    """The mean in the type of the predictions, which takes half the memory of the pool's."""

    def __init__(self) -> None:
        self._short = torch.zeros(())
        self._count = 0.0

    def add(self, predictions: Tensor, weight: float = 1.0) -> None:
        self._short = self._short + weight * predictions
        self._count += weight

    def result(self) -> Tensor:
        return self._short / self._count


@dataclass(frozen=True)
class Fitted:
    """Temperatures that were found on validation data.

    Attributes:
        members: Of each member.
        pooled: Of all members pooled.
        last: Of the last few pooled; 1 if there are none.
    """

    members: Sequence[Calibration]
    pooled: Calibration = 1.0
    last: Calibration = 1.0


@dataclass(frozen=True)
class ChunkedScores:
    """The results of several pooled members, whose predictions are gone.

    Attributes:
        scores: Of each example.
        metrics: All of the task's, and how much the members differ.
        temperature: That of the pooled prediction, which was fitted before.
        calibrated: The scores at that temperature.
        of_members: The scores with each member at its own temperature.
    """

    scores: ExampleScores
    metrics: dict[str, float]
    temperature: Calibration
    calibrated: ExampleScores
    of_members: ExampleScores

    def fit(self) -> Calibration:
        """Return the temperature that was fitted before."""
        return self.temperature

    def at(self, temperature: Calibration) -> ExampleScores:
        """Return the scores of each example at that temperature."""
        if temperature != self.temperature:
            raise InvalidValueError(
                f"scores are kept at the temperature {self.temperature}, got {temperature}"
            )
        return self.calibrated

    def at_member_temperatures(self) -> ExampleScores:
        """Return the scores of each example with each member at its own temperature."""
        return self.of_members


def fit_in_chunks(ensemble: Ensemble, batches: Iterable[Any], last: int | None) -> Fitted:
    """Return the temperatures that suit validation data best; the task keeps a sample of each prediction.

    Args:
        ensemble: Whose.
        batches: The validation data, pairs of inputs and targets; read for each member, up to three times.
        last: How many of the last members are also pooled by themselves.
    """
    of_members = ensemble.calibrated(batches, by="members").temperatures.members
    pooled = ensemble.calibrated(batches).temperatures.pooled
    of_last = ensemble.last(last).calibrated(batches).temperatures.pooled if last else 1.0
    return Fitted(of_members or (), pooled, of_last)


def evaluate_in_chunks(
    ensemble: Ensemble,
    batches: Iterable[Any],
    *,
    last: int | None = None,
    fitted: Fitted | None = None,
    on_examples: Callable[[int], None] | None = None,
) -> Evaluation:
    """Return what `evaluate` returns, in memory that does not grow with the data beyond the scores.

    Args:
        ensemble: What to measure.
        batches: Pairs of inputs and targets; read once.
        last: How many of the last members are also pooled by themselves.
        fitted: The temperatures for scores at temperatures; all are 1 if None.
        on_examples: Called with the number of examples done.
    """
    task, count = ensemble.task, len(ensemble)
    fitted = fitted or Fitted([1.0] * count)
    each: list[list[ExampleScores]] = [[] for _ in range(count)]
    growing: list[list[ExampleScores]] = [[] for _ in range(count)]
    pooled, of_last = _Collected(task, fitted.pooled), _Collected(task, fitted.last)
    done = 0
    for chunk, members in ensemble.predict_chunks(batches):
        targets = [task.targets_of(batch).cpu() for batch in chunk]
        pools = [PooledMembers(task, ensemble.temperatures, of_part) for of_part in targets]
        last_pools = [PooledMembers(task, targets=of_part) for of_part in targets]
        for number, member in enumerate(members):
            for part, on_device in enumerate(member):
                predictions = on_device.cpu()
                each[number].append(task.score(predictions, targets[part]))
                pools[part].add(predictions, fitted.members[number])
                growing[number].append(task.score(pools[part].predictions, targets[part]))
                if last and number >= count - last:
                    last_pools[part].add(predictions, fitted.members[number])
        for pool, last_pool, of_part in zip(pools, last_pools, targets, strict=True):
            pooled.add(pool, of_part)
            if last:
                of_last.add(last_pool, of_part)
            done += len(of_part)
        if on_examples:
            on_examples(done)
    return Evaluation(
        pooled.result(),
        of_last.result() if last else None,
        [task.summarize(_join(scores)) for scores in each],
        [task.summarize(_join(scores)) for scores in growing],
        list(fitted.members),
    )


def compare_in_chunks(
    ensemble: Ensemble, other: Ensemble, batches: Iterable[Any]
) -> tuple[ExampleScores, ExampleScores, float]:
    """Return the scores of two ensembles on the same data, and the divergence of the first from the other.

    Args:
        ensemble: One.
        other: The one that is expected.
        batches: Pairs of inputs and targets that can be read again in the same order.
    """
    task = ensemble.task
    scores: list[ExampleScores] = []
    of_other: list[ExampleScores] = []
    divergence = weight = 0.0
    pairs = zip(_pooled_batches(ensemble, batches), _pooled_batches(other, batches), strict=True)
    for (predictions, targets), (expected, _) in pairs:
        scores.append(task.score(predictions, targets))
        of_other.append(task.score(expected, targets))
        divergence += task.divergence(expected, predictions) * predictions.numel()
        weight += predictions.numel()
    return _join(scores), _join(of_other), divergence / weight


def _pooled_batches(ensemble: Ensemble, batches: Iterable[Any]) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield the pooled prediction of each batch, and its targets."""
    for chunk, members in ensemble.predict_chunks(batches):
        pools = [ensemble.task.pool() for _ in chunk]
        for number, member in enumerate(members):
            for pool, predictions in zip(pools, member, strict=True):
                pool.add(predictions.cpu(), ensemble.temperatures.weight_of(number))
        for batch, pool in zip(chunk, pools, strict=True):
            pooled = ensemble.task.calibrate(pool.result(), ensemble.temperatures.pooled)
            yield pooled, ensemble.task.targets_of(batch).cpu()


@dataclass
class _Collected:
    """The scores of pooled members, batch by batch."""

    task: Task
    temperature: Calibration
    scores: list[ExampleScores] = field(default_factory=list)
    calibrated: list[ExampleScores] = field(default_factory=list)
    of_members: list[ExampleScores] = field(default_factory=list)
    differences: dict[str, float] = field(default_factory=dict)
    weight: float = 0.0

    def add(self, pool: PooledMembers, targets: Tensor) -> None:
        predictions = pool.predictions
        scores = self.task.score(predictions, targets)
        counted = _counted(scores, predictions)
        self.scores.append(scores)
        self.calibrated.append(self.task.score(self.task.calibrate(predictions, self.temperature), targets))
        self.of_members.append(self.task.score(pool.at_temperatures, targets))
        for name, value in pool.differences().items():  # each is a mean over positions
            self.differences[name] = self.differences.get(name, 0.0) + value * counted
        self.weight += counted

    def result(self) -> ChunkedScores:
        scores = _join(self.scores)
        differences = {name: total / self.weight for name, total in self.differences.items()}
        return ChunkedScores(
            scores,
            self.task.summarize(scores) | differences,
            self.temperature,
            _join(self.calibrated),
            _join(self.of_members),
        )


def _counted(scores: ExampleScores, predictions: Tensor) -> float:
    """Return what the mean over a batch weighs among other batches: its positions that are not ignored."""
    return scores.positions.sum().item() if isinstance(scores, PositionScores) else predictions.numel()


def _join(parts: Sequence[ExampleScores]) -> ExampleScores:
    return type(parts[0]).cat(parts)


def predict(session: Session, ensemble: Ensemble, data: DataPart, name: str) -> Iterator[Tensor]:
    """Yield each member's predictions on a part of the data, and show progress.

    Every process predicts its part of the data; all get the whole.

    Args:
        session: The experiment.
        ensemble: What predicts, on the engine's device.
        data: The examples.
        name: What to call this work where progress is shown.
    """
    number, count = session.engine.rank_and_world_size
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
        fitted = fit_in_chunks(ensemble, session.in_batches(data), last)
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
