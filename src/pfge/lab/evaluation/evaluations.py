"""What measuring an ensemble on one part of the data finds."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from pfge.calibration import Calibration
from pfge.metrics.example_scores import ExampleScores
from pfge.tasks import Task


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
