"""Measure an ensemble whose predictions are large, as masks are: batch by batch, of which scores are kept."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pfge.calibration import Calibration
from pfge.ensemble import Ensemble
from pfge.lab.evaluation.evaluations import Evaluation
from pfge.lab.evaluation.pooled_members import PooledMembers
from pfge.metrics.example_scores import ExampleScores
from pfge.metrics.position_scores import PositionScores
from pfge.tasks import Task


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
            raise ValueError(f"scores are kept at the temperature {self.temperature}, got {temperature}")
        return self.calibrated

    def at_member_temperatures(self) -> ExampleScores:
        """Return the scores of each example with each member at its own temperature."""
        return self.of_members


def fit_in_chunks(ensemble: Ensemble, batches: Iterable[Any], targets: Tensor, last: int | None) -> Fitted:
    """Return the temperatures that suit validation data best; the task keeps a sample of each prediction.

    Args:
        ensemble: Whose.
        batches: The validation data; read for each member, up to three times.
        targets: The true answer of each example.
        last: How many of the last members are also pooled by themselves.
    """
    of_members = ensemble.calibrated(batches, targets, by="members").temperatures.members
    pooled = ensemble.calibrated(batches, targets).temperatures.pooled
    of_last = ensemble.last(last).calibrated(batches, targets).temperatures.pooled if last else 1.0
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
        targets = [batch[1].cpu() for batch in chunk]
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
            yield ensemble.task.calibrate(pool.result(), ensemble.temperatures.pooled), batch[1].cpu()


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
