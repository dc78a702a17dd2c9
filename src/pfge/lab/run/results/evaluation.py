"""What `pfge evaluate` finds: metrics of one saved ensemble on known, unknown and corrupted inputs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pfge.lab.run.results.base import Count, Finite, FittedNumber, MeasuredResult, Metrics, StoredTask
from pfge.lab.run.typed_json import Flat
from pfge.tasks.manifest import DEFAULT_TASK


@dataclass(frozen=True)
class Separation:
    """How well a score tells unknown inputs from known ones."""

    auroc: Finite
    aupr: Finite
    fpr_at_95: Finite


@dataclass(frozen=True)
class UnknownInputs:
    """How well each score tells the images of another data set from the test set."""

    images: Count
    scores: Annotated[Mapping[str, Separation], Flat()]


@dataclass(frozen=True)
class CorruptedInputs:
    """The metrics on test images that were corrupted at one strength."""

    strength: Count
    metrics: Annotated[Metrics, Flat()]


@dataclass(frozen=True, kw_only=True)
class EnsembleEvaluation(MeasuredResult):
    """Metrics of one saved ensemble on known, unknown and corrupted inputs.

    Attributes:
        task: What the metrics are of.
        method: How the ensemble was made, if it says so.
        model: Of which architecture, if it says so.
        members: How many.
        bytes: Of their weights.
        temperature: Of the pooled predictions.
        member_temperatures: Of each member, if they have any.
        member_weights: How much each member counts, if they do not count the same.
        data: The name of the data set.
        images: How many the test set has.
        test: The metrics on it, and how far another ensemble's predictions are, if one was given.
        reliability: Bins of confidence, as lists of the same length; empty for tasks without classes.
        ood: Results for each data set of unknown inputs, by name.
        corruptions: Each corruption at growing strengths, by name.
        ensemble: The folder of the ensemble.
        bytes_on_disk: Of all its files.
        environment: Where and how this was measured.
    """

    task: StoredTask = DEFAULT_TASK
    method: str | None
    model: str | None
    members: Count
    bytes: Count
    temperature: FittedNumber
    member_temperatures: Sequence[FittedNumber] | None
    data: str
    images: Count
    test: Metrics
    reliability: Mapping[str, Sequence[float]]
    ood: Mapping[str, UnknownInputs]
    corruptions: Mapping[str, Sequence[CorruptedInputs]]
    member_weights: Sequence[float] | None = None
    ensemble: str | None = None
    bytes_on_disk: int | None = None
    environment: Mapping[str, Any] | None = None

    def measured(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Yield the metrics on the test set, and on every corrupted one."""
        yield "test", self.test
        for name, strengths in self.corruptions.items():
            for index, corrupted in enumerate(strengths):
                yield f"corruptions.{name}[{index}]", corrupted.metrics
