"""Measure an ensemble on a data set: pooled, each member alone, and as it grows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pfge.calibration import UNSCALED, Calibration, Temperatures
from pfge.ensemble import Ensemble
from pfge.errors import MisuseError
from pfge.lab.data import DataPart
from pfge.lab.session import Session
from pfge.metrics.position_scores import PositionScores
from pfge.metrics.scores import ExampleScores
from pfge.prediction import MemberPool
from pfge.tasks import DiversityAccumulator, MeanPool, Pool, Task


@dataclass(frozen=True)
class CalibratedScores:
    """The scores of several pooled members at fitted temperatures.

    Attributes:
        temperature: The temperature of the pooled prediction.
        scores: The scores of each example at that temperature.
        of_members: The scores of each example with each member at its own temperature instead.
    """

    temperature: Calibration
    scores: ExampleScores
    of_members: ExampleScores


@dataclass(frozen=True)
class PooledScores:
    """The results of several pooled members.

    Attributes:
        scores: The scores of each example.
        metrics: All metrics of the task, and how much the members differ.
        calibrated: The scores at fitted temperatures; None without any.
    """

    scores: ExampleScores
    metrics: dict[str, float]
    calibrated: CalibratedScores | None

    def require_calibrated(self) -> CalibratedScores:
        """Return the scores at fitted temperatures, or raise an error without any."""
        if self.calibrated is None:
            raise MisuseError(
                "calibrated scores need temperatures; pass fit_temperatures=True, or after=, an evaluation "
                "of validation data"
            )
        return self.calibrated


@dataclass(frozen=True)
class Evaluation:
    """The results of an ensemble on one part of the data.

    Attributes:
        pooled: The results of all members together.
        last: The results of the last few members together, if required.
        members: The metrics of each member.
        growing: The metrics of the first 1, 2, ... members pooled.
        member_temperatures: The temperature of each member, as fitted or given; 1 without any.
    """

    pooled: PooledScores
    last: PooledScores | None
    members: list[dict[str, float]]
    growing: list[dict[str, float]]
    member_temperatures: list[Calibration]

    @property
    def fitted(self) -> "Fitted | None":
        """The temperatures that the calibrated scores are at."""
        if self.pooled.calibrated is None:
            return None
        last = self.last.calibrated.temperature if self.last and self.last.calibrated else 1.0
        return Fitted(self.member_temperatures, self.pooled.calibrated.temperature, last)


@dataclass(frozen=True)
class Fitted:
    """Temperatures that were fitted on validation data.

    Attributes:
        members: The temperature of each member.
        pooled: The temperature of all members pooled.
        last: The temperature of the last few members pooled; 1 without any.
    """

    members: Sequence[Calibration]
    pooled: Calibration = 1.0
    last: Calibration = 1.0


class PooledMembers:
    """Members pooled as an ensemble pools them, and what the lab reports beside the pooled prediction.

    Args:
        task: The ensemble's task.
        temperatures: The ensemble's weights and its pooled temperature.
        targets: The true answers. Positions that they ignore do not count in differences of members; all
            positions count if None.
    """

    def __init__(self, task: Task, temperatures: Temperatures = UNSCALED, targets: Tensor | None = None):
        self.diversity: DiversityAccumulator = (
            task.diversity() if targets is None else task.diversity_at(targets)
        )
        self._task = task
        self._temperatures = temperatures
        self._members = 0
        self._pool = MemberPool(task, temperatures)
        pool = task.pool()
        self._at_temperatures: Pool = _ShortMean() if isinstance(pool, MeanPool) else pool

    def add(self, predictions: Tensor, temperature: Calibration = 1.0) -> None:
        """Add one more member's predictions.

        Args:
            predictions: The member's predictions.
            temperature: The member's own temperature, for the mean at temperatures.
        """
        self._pool.add(predictions)
        self.diversity.add(predictions, self._temperatures.weight_of(self._members))
        self._at_temperatures.add(self._task.calibrate(predictions, temperature))
        self._members += 1

    @property
    def predictions(self) -> Tensor:
        """The pooled prediction."""
        return self._pool.predictions

    @property
    def uncalibrated(self) -> Tensor:
        """The pooled prediction without its temperature."""
        return self._pool.uncalibrated

    @property
    def at_temperatures(self) -> Tensor:
        """The pooled prediction of members each at its own temperature."""
        return self._at_temperatures.result()

    def differences(self) -> dict[str, float]:
        """Return how much the members differ, by name."""
        return self.diversity.metrics(self.uncalibrated)


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


class Evaluator:
    """Measures an ensemble on some examples after others: on a whole data set at once, or on its batches.

    Args:
        ensemble: The ensemble.
        last: How many of the last members are also pooled by themselves.
        fitted: Temperatures for calibrated scores.
        fit: Whether to fit temperatures, which needs the whole data set at once.
        whole: Whether the first examples are the whole data set. Members' scores are then dropped at once,
            and no means over batches are taken.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        last: int | None = None,
        fitted: Fitted | None = None,
        fit: bool = False,
        whole: bool = False,
    ):
        count = len(ensemble)
        self.task = ensemble.task
        self.temperatures = ensemble.temperatures
        self.fit = fit
        self.whole = whole
        self.first_of_last = count - last if last else count
        self.member_temperatures: list[Calibration] = list(fitted.members) if fitted else []
        if not fitted and not fit:
            self.member_temperatures = [1.0] * count
        self.each, self.growing = _MemberMetrics(self.task, whole), _MemberMetrics(self.task, whole)
        self._pooled = _Collected(self, fitted.pooled if fitted else None)
        self._last = _Collected(self, fitted.last if fitted else None) if last else None

    def examples(self, targets: Tensor) -> "_Examples":
        """Return the accumulator of members' predictions for some examples."""
        return _Examples(self, targets)

    def collect(self, examples: "_Examples") -> None:
        """Keep the scores of examples that every member has predicted; their predictions are dropped."""
        self._pooled.add(examples.pool, examples.scores, examples.targets)
        if self._last:
            scores = self.task.score(examples.last_pool.predictions, examples.targets)
            self._last.add(examples.last_pool, scores, examples.targets)

    def result(self) -> Evaluation:
        """Return the results on all examples."""
        return Evaluation(
            self._pooled.result(),
            self._last.result() if self._last else None,
            self.each.result(),
            self.growing.result(),
            self.member_temperatures,
        )


class _MemberMetrics:
    """The metrics of each member, from its scores on some examples after others."""

    def __init__(self, task: Task, whole: bool):
        self._task = task
        self._whole = whole
        self._metrics: list[dict[str, float]] = []
        self._scores: dict[int, list[ExampleScores]] = {}

    def add(self, number: int, scores: ExampleScores) -> None:
        if self._whole:
            self._metrics.append(self._task.summarize(scores))
        else:
            self._scores.setdefault(number, []).append(scores)

    def result(self) -> list[dict[str, float]]:
        return self._metrics or [self._task.summarize(_join(scores)) for scores in self._scores.values()]


class _Examples:
    """Scores the members' predictions for some examples as they come.

    Attributes:
        targets: The true answers.
        pool: The members so far.
        last_pool: The last few members so far.
        scores: The scores of the members so far pooled.
    """

    scores: ExampleScores

    def __init__(self, evaluator: Evaluator, targets: Tensor):
        self.targets = targets.cpu()
        self.pool = PooledMembers(evaluator.task, evaluator.temperatures, self.targets)
        self.last_pool = PooledMembers(evaluator.task, targets=self.targets)
        self._evaluator = evaluator
        self._number = 0

    def add(self, predictions: Tensor) -> None:
        found, task, number = self._evaluator, self._evaluator.task, self._number
        predictions = predictions.cpu()
        if len(found.member_temperatures) <= number:
            found.member_temperatures.append(task.fit_calibration(predictions, self.targets))
        temperature = found.member_temperatures[number]
        found.each.add(number, task.score(predictions, self.targets))
        self.pool.add(predictions, temperature)
        self.scores = task.score(self.pool.predictions, self.targets)
        found.growing.add(number, self.scores)
        if number >= found.first_of_last:
            self.last_pool.add(predictions, temperature)
        self._number += 1


@dataclass
class _Collected:
    """The scores of pooled members, some examples after others."""

    evaluator: Evaluator
    temperature: Calibration | None
    scores: list[ExampleScores] = field(default_factory=list)
    calibrated: list[ExampleScores] = field(default_factory=list)
    of_members: list[ExampleScores] = field(default_factory=list)
    differences: dict[str, float] = field(default_factory=dict)
    weight: float = 0.0

    def add(self, pool: PooledMembers, scores: ExampleScores, targets: Tensor) -> None:
        task, predictions = self.evaluator.task, pool.predictions
        self.scores.append(scores)
        # Without a mean over batches, no product may be rounded.
        weight = 1.0 if self.evaluator.whole else _counted(scores, predictions)
        for name, value in pool.differences().items():  # each is a mean over positions
            self.differences[name] = self.differences.get(name, 0.0) + value * weight
        self.weight += weight
        if self.temperature is None:
            if not self.evaluator.fit:
                return
            self.temperature = task.fit_calibration(predictions, targets)
        self.calibrated.append(task.score(task.calibrate(predictions, self.temperature), targets))
        self.of_members.append(task.score(pool.at_temperatures, targets))

    def result(self) -> PooledScores:
        scores = _join(self.scores)
        differences = {name: total / self.weight for name, total in self.differences.items()}
        calibrated = None
        if self.temperature is not None:
            calibrated = CalibratedScores(self.temperature, _join(self.calibrated), _join(self.of_members))
        return PooledScores(scores, self.evaluator.task.summarize(scores) | differences, calibrated)


def _counted(scores: ExampleScores, predictions: Tensor) -> float:
    """Return the weight of a batch's mean among other batches: its positions that are not ignored."""
    return scores.positions.sum().item() if isinstance(scores, PositionScores) else predictions.numel()


def _join(scores: Sequence[ExampleScores]) -> ExampleScores:
    return scores[0] if len(scores) == 1 else type(scores[0]).cat(scores)


def evaluate(
    ensemble: Ensemble,
    predictions: Iterable[Tensor],
    targets: Tensor,
    *,
    last: int | None = None,
    fitted: Fitted | None = None,
    fit: bool = False,
) -> Evaluation:
    """Return the results of all members, of the last few, of each, and of the first 1, 2, ... members.

    Beside the pooled predictions, one member's are in memory, whatever the number of members.

    Args:
        ensemble: The ensemble whose members predicted.
        predictions: Each member's predictions for the whole data set.
        targets: The true answer of each example.
        last: How many of the last members are also pooled by themselves.
        fitted: Temperatures for calibrated scores.
        fit: Whether to fit temperatures on these examples instead.
    """
    evaluator = Evaluator(ensemble, last=last, fitted=fitted, fit=fit, whole=True)
    examples = evaluator.examples(targets)
    for member in predictions:
        examples.add(member)
    evaluator.collect(examples)
    return evaluator.result()


def evaluate_in_chunks(
    ensemble: Ensemble,
    batches: Iterable[Any],
    *,
    last: int | None = None,
    fitted: Fitted | None = None,
    on_examples: Callable[[int], None] | None = None,
) -> Evaluation:
    """Do what `evaluate` does, batch by batch, in memory that grows with the data by the scores alone.

    Args:
        ensemble: The ensemble.
        batches: Pairs of inputs and targets; read once.
        last: How many of the last members are also pooled by themselves.
        fitted: Temperatures for calibrated scores.
        on_examples: Called with the number of examples done.
    """
    evaluator = Evaluator(ensemble, last=last, fitted=fitted)
    done = 0
    for batch, examples in ensemble.pool(
        batches, into=lambda batch: evaluator.examples(ensemble.task.targets_of(batch))
    ):
        evaluator.collect(examples)
        done += len(examples.targets)
        if on_examples:
            on_examples(done)
        del batch, examples  # before the next chunk is read
    return evaluator.result()


def fit_in_chunks(ensemble: Ensemble, batches: Iterable[Any], last: int | None) -> Fitted:
    """Return temperatures fitted on validation data, of which the task keeps a sample of each prediction.

    Args:
        ensemble: The ensemble.
        batches: The validation data, pairs of inputs and targets; read for each member, up to three times.
        last: How many of the last members are also pooled by themselves.
    """
    of_members = ensemble.calibrated(batches, by="members").temperatures.members
    pooled = ensemble.calibrated(batches).temperatures.pooled
    of_last = ensemble.last(last).calibrated(batches).temperatures.pooled if last else 1.0
    return Fitted(of_members or (), pooled, of_last)


def compare_in_chunks(
    ensemble: Ensemble, other: Ensemble, batches: Iterable[Any]
) -> tuple[ExampleScores, ExampleScores, float]:
    """Return the scores of two ensembles on the same data, and the divergence of the first from the other.

    Args:
        ensemble: The ensemble to compare.
        other: The ensemble whose predictions are expected.
        batches: Pairs of inputs and targets that can be read again in the same order.
    """
    task, cpu = ensemble.task, torch.device("cpu")
    scores: list[ExampleScores] = []
    of_other: list[ExampleScores] = []
    divergence = weight = 0.0

    def pools(of: Ensemble) -> Iterator[tuple[Any, MemberPool]]:
        return of.pool(batches, into=lambda _: MemberPool(task, of.temperatures, cpu))

    pairs = zip(pools(ensemble), pools(other), strict=True)
    for (batch, pool), (_, other_pool) in pairs:
        predictions, expected = pool.predictions, other_pool.predictions
        targets = task.targets_of(batch).cpu()
        scores.append(task.score(predictions, targets))
        of_other.append(task.score(expected, targets))
        divergence += task.divergence(expected, predictions) * predictions.numel()
        weight += predictions.numel()
    return _join(scores), _join(of_other), divergence / weight


def predict(session: Session, ensemble: Ensemble, data: DataPart, name: str) -> Iterator[Tensor]:
    """Yield each member's predictions on a part of the data, and show progress.

    Every process predicts its share of the data; all get the whole.

    Args:
        session: The experiment.
        ensemble: The ensemble, on the engine's device.
        data: The examples.
        name: The name of this work in the progress display.
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

    Predictions for the positions of an example are too large to keep, so these are scored batch by batch, and
    every process evaluates all of them.

    Args:
        session: The experiment.
        ensemble: The ensemble to measure, on the engine's device.
        data: The examples.
        name: The name of this work in the progress display.
        last: How many of the last members are also pooled by themselves.
        fit_temperatures: Whether to fit temperatures on these examples.
        after: The evaluation of other examples, whose temperatures are used.
    """
    fitted = after.fitted if after else None
    if not session.has_positions:
        predictions = predict(session, ensemble, data, name)
        targets = data.labels.cpu()
        return evaluate(ensemble, predictions, targets, last=last, fitted=fitted, fit=fit_temperatures)
    batches = session.in_batches(data)
    if fit_temperatures:
        fitted = fit_in_chunks(ensemble, batches, last)
    with session.reporter.task(name, len(data)) as advance:
        return evaluate_in_chunks(
            ensemble, batches, last=last, fitted=fitted, on_examples=lambda done: advance(done, "")
        )
