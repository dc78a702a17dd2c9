"""What a task says: what outputs and targets mean, and how predictions are pooled, scored and calibrated."""

from abc import ABC, abstractmethod
from typing import Any, Literal, Protocol

from torch import Tensor

from pfge.calibration import Calibration
from pfge.metrics.example_scores import ExampleScores
from pfge.tasks.metric import Metric


class Pool(Protocol):
    """Members' predictions added one by one; it takes the memory of one member's, however many they are.

    A member's weight is its share of the sum of all weights.

    Example:
        >>> import torch
        >>> from pfge.tasks import Classification
        >>> pool = Classification().pool()
        >>> pool.add(torch.tensor([[0.9, 0.1], [0.5, 0.5]]))
        >>> pool.add(torch.tensor([[0.7, 0.3], [0.5, 0.5]]))
        >>> pool.take(torch.tensor([0])).result()
        tensor([[0.8000, 0.2000]], dtype=torch.float64)
    """

    def add(self, predictions: Tensor, weight: float = 1.0) -> None:
        """Add one more member's predictions."""

    def take(self, index: Tensor) -> "Pool":
        """Return a pool of the same members for some of the examples: a mask, or their numbers."""

    def result(self) -> Tensor:
        """Return the pooled predictions, in the precision that they are summed in."""


class Spread(Protocol):
    """How much members differ, from one member's predictions at a time.

    A member's weight is the one that it has in the pool; numbers that compare pairs of members may leave it
    out.

    Example:
        >>> import torch
        >>> from pfge.tasks import Classification
        >>> spread = Classification().spread()
        >>> spread.add(torch.tensor([[1.0, 0.0]]))
        >>> spread.add(torch.tensor([[0.0, 1.0]]))
        >>> spread.metrics(torch.tensor([[0.5, 0.5]]))
        {'mutual_information': 0.6931471805599453, 'disagreement': 1.0}
    """

    def add(self, predictions: Tensor, weight: float = 1.0) -> None:
        """Add one more member's predictions."""

    def metrics(self, pooled: Tensor) -> dict[str, float]:
        """Return numbers by name; `pooled` are the pooled predictions of the members that were added."""


class Task(ABC):
    """What a model's outputs and the targets mean.

    A task is a value: a frozen dataclass whose fields are its options, numbers or texts that JSON can hold.
    Two tasks of the same options are equal, and `repr` is the constructor call.

    A calibration is one positive number, or one for each label, found on predictions that the model was not
    trained on; 1 leaves predictions as they are.

    Example:
        >>> from pfge.tasks import Regression, Task
        >>> isinstance(Regression(), Task)
        True
        >>> [metric.name for metric in Regression().metrics]
        ['rmse', 'nll', 'crps', 'coverage']
    """

    @property
    @abstractmethod
    def metrics(self) -> tuple[Metric, ...]:
        """What is computed from scores: the columns of every table, the most important first.

        A task whose examples may have several shapes lists those of all of them; `Metric.of` says which
        scores have which.
        """

    @property
    def needs_calibration(self) -> bool:
        """Whether metrics that use confidence compare predictors only once these are calibrated: here not."""
        return False

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Return what training minimizes, a scalar.

        Args:
            outputs: Of the model, for a batch.
            targets: The true answers.
            reduction: The mean over examples, or that times their number, which can be added over batches
                of any size.
        """

    @abstractmethod
    def predictions(self, outputs: Any) -> Tensor:
        """Return what a model says by its outputs, examples first.

        Raises:
            ValueError: The outputs are of another shape or kind than this task's.
        """

    @abstractmethod
    def pool(self) -> Pool:
        """Return an empty pool of members' predictions."""

    @abstractmethod
    def spread(self) -> Spread:
        """Return an accumulator of how much members' predictions differ."""

    def spread_at(self, targets: Tensor) -> Spread:  # noqa: ARG002
        """Return an accumulator of how much predictions differ where targets count: here everywhere."""
        return self.spread()

    @abstractmethod
    def score(self, predictions: Tensor, targets: Tensor) -> ExampleScores:
        """Return the scores of each example, from which the metrics are computed.

        Raises:
            ValueError: Predictions or targets do not fit the task; the message has their shapes.
        """

    @abstractmethod
    def divergence(self, expected: Tensor, predictions: Tensor) -> float:
        """Return how far predictions are from those that were expected; 0 if they are equal."""

    def divergence_loss(self, expected: Tensor, predictions: Tensor) -> Tensor:  # noqa: ARG002
        """Return the divergence as a scalar that distillation can minimize by its gradient.

        Raises:
            ValueError: The task has none.
        """
        raise ValueError(
            f"distillation needs a task with divergence_loss, got {self}; implement it, or leave distil out"
        )

    @abstractmethod
    def fit_calibration(self, predictions: Tensor, targets: Tensor) -> Calibration:
        """Return the calibration that makes the targets most likely; 1, with a warning, if none does."""

    @abstractmethod
    def calibrate(self, predictions: Tensor, calibration: Calibration | Tensor) -> Tensor:
        """Return predictions, a member's or pooled ones, at a calibration.

        Args:
            predictions: Of any number of examples.
            calibration: As from `fit_calibration`. In the graph of an export it is a tensor.
        """

    def calibration_sample(self, predictions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the part of predictions and targets that a calibration is fitted on: here all of them.

        A task of large predictions keeps few for each example. The choice depends on the targets alone, so
        that it is the same for each member.
        """
        return predictions, targets

    def summarize(self, scores: ExampleScores) -> dict[str, float]:
        """Return every metric that scored examples have by its name."""
        return {
            metric.name: metric.compute(scores) for metric in self.metrics if isinstance(scores, metric.of)
        }

    def metric(self, name: str) -> Metric:
        """Return the metric of a name."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        known = ", ".join(metric.name for metric in self.metrics)
        raise ValueError(f"the metrics of {self} are {known}, got {name!r}")
