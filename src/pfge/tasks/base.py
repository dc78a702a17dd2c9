"""The interface of tasks: metrics, pools and what a task defines."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from pfge.calibration import Calibration
from pfge.errors import InvalidValueError
from pfge.forward import TargetsAt, targets_of
from pfge.metrics.scores import ExampleScores


@dataclass(frozen=True)
class Metric:
    """One number that says how good predictions are.

    Args:
        name: Its key in results, as `nll`.
        label: Its name in tables, as `NLL`.
        better: Whether higher or lower values are better, or those closer to the `aim`.
        compute: Returns the value from a task's scores.
        unit: "%" where the value is a share that is shown in percent.
        digits: Decimals in tables, after the conversion to the unit.
        score: The name of the per-example scores whose mean is the metric. Differences between methods can be
            tested only with it.
        weight: The name of the scores by which examples are weighted. If the scores have it, the metric is
            the sum of the scores over the sum of the weights.
        aim: The best value if `better` is "closer".
        of: The class of scores that the metric can be computed from.
        is_main: Whether it has a column in the main table of a comparison.
        uses_confidence: Whether the metric depends on confidence, and so on the temperature.

    Example:
        >>> import torch
        >>> from pfge.metrics import score_examples
        >>> from pfge.tasks import Metric
        >>> surest = Metric("surest", "surest", "higher", lambda s: s.confidence.max().item(), "%", digits=1)
        >>> surest.head
        'surest %'
        >>> surest.compute(score_examples(torch.tensor([[0.25, 0.75]]), torch.tensor([0])))
        0.75
    """

    name: str
    label: str
    better: Literal["higher", "lower", "closer"]
    compute: Callable[[Any], float]
    unit: Literal["", "%"] = ""
    digits: int = 4
    score: str | None = None
    is_main: bool = False
    uses_confidence: bool = True
    weight: str | None = None
    aim: float | None = None
    of: type = object

    def per_example(self, scores: Mapping[str, Tensor]) -> Tensor | None:
        """Return per-example values that average to the metric, [N]; None without `score`.

        They are the scores, or, with weights w, the scores divided by the mean of w. For two predictors on
        the same examples, the mean difference of these values is the difference of the metrics.

        Args:
            scores: Scores by name: `ExampleScores.tensors`, or the content of a file saved from them.
        """
        if self.score is None or self.score not in scores:
            return None
        if self.weight is None or self.weight not in scores:
            return scores[self.score]
        return scores[self.score] / scores[self.weight].mean()

    def penalty(self, value: float) -> float:
        """Return a number that is lower the better a value is."""
        if self.better == "closer":
            return abs(value - (self.aim or 0.0))
        return -value if self.better == "higher" else value

    @property
    def factor(self) -> float:
        """The factor that converts a value to its unit."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def head(self) -> str:
        """The heading of the metric's column."""
        return f"{self.label} {self.unit}".rstrip()


class MeanPool:
    """The mean of members' predictions, p = (w_1 p_1 + ... + w_K p_K) / (w_1 + ... + w_K); weights are 1.

    It is summed in float64, or in float32 on devices without that, so that the last bit of a member's
    predictions counts however many members there are.

    Example:
        >>> import torch
        >>> from pfge.tasks import MeanPool
        >>> pool = MeanPool()
        >>> pool.add(torch.tensor([1.0, 2.0]))
        >>> pool.add(torch.tensor([3.0, 2.0]))
        >>> pool.result()
        tensor([2., 2.], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._weight = 0.0

    def add(self, predictions: Tensor, weight: float = 1.0) -> None:
        """Add one more member's predictions, of the shape of the others'."""
        if self._total is None:
            self._total = predictions.detach().to(sum_type(predictions.device), copy=True)
            if weight != 1:  # as a weight of 1 would be an operation in every exported graph
                self._total *= weight
        elif predictions.shape != self._total.shape:
            raise InvalidValueError(
                f"every member must predict the same examples, got predictions of shape "
                f"{list(self._total.shape)} and then {list(predictions.shape)}"
            )
        else:
            self._total.add_(predictions, alpha=weight)
        self._weight += weight

    def take(self, index: Tensor) -> "MeanPool":
        """Return a pool of the same members for some of the examples: a mask, or their numbers."""
        taken = MeanPool()
        taken._total, taken._weight = self._sum()[index], self._weight
        return taken

    def result(self) -> Tensor:
        """Return the mean, in the type of the sum."""
        return self._sum() / self._weight

    def _sum(self) -> Tensor:
        if self._total is None:
            raise InvalidValueError("a pool needs at least one member, got none; call add() first")
        return self._total


def sum_type(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


class MixturePool:
    """Mean and variance of the mixture of members' distributions, with m_k and v_k of each member.

        mean = sum over k of w_k m_k
        variance = sum over k of w_k v_k + sum over k of w_k (m_k - mean)^2

    The weights are divided by their sum: w_k = 1 / K if all K members have the same weight.

    The sum of squares is updated with each member (Welford), in float64, or in float32 on devices without
    that: a difference of large squares would lose the variance of members that nearly agree.

    Example:
        >>> import torch
        >>> from pfge.tasks import MixturePool
        >>> pool = MixturePool()
        >>> pool.add(torch.tensor([[[1.0, 0.5]]]))  # [N, D, 2], a mean and a variance
        >>> pool.add(torch.tensor([[[3.0, 1.5]]]))
        >>> pool.result()
        tensor([[[2., 2.]]], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self.members = 0
        self._weight = 0.0
        self._mean = self._squares = self._variance = torch.zeros(())

    def add(self, predictions: Tensor, weight: float = 1.0) -> None:
        """Add one more member's means and variances, of the shape of the others'."""
        means, variances = predictions.detach().to(sum_type(predictions.device)).unbind(dim=-1)
        total = self._weight + weight
        if not self.members:
            self._mean, self._squares = means.clone(), torch.zeros_like(means)
            self._variance = weight * variances
        elif means.shape != self._mean.shape:
            raise InvalidValueError(
                f"every member must predict the same examples, got predictions of shape "
                f"{[*self._mean.shape, 2]} and then {list(predictions.shape)}"
            )
        else:
            away = means - self._mean
            self._mean = self._mean + weight * away / total
            self._squares = self._squares + weight * away * (means - self._mean)
            self._variance = self._variance + weight * variances
        self.members += 1
        self._weight = total

    def take(self, index: Tensor) -> "MixturePool":
        """Return a pool of the same members for some of the examples: a mask, or their numbers."""
        taken = MixturePool()
        taken.members, taken._weight = self.members, self._total_weight()
        taken._mean, taken._squares = self._mean[index], self._squares[index]
        taken._variance = self._variance[index]
        return taken

    def result(self) -> Tensor:
        """Return means and variances, in the type of the sums."""
        return torch.stack(
            [self._mean, self._variance / self._total_weight() + self.variance_of_means()], dim=-1
        )

    def variance_of_means(self) -> Tensor:
        """Return the part of the variance by which members differ."""
        return self._squares / self._total_weight()

    def _total_weight(self) -> float:
        if not self.members:
            raise InvalidValueError("a pool needs at least one member, got none; call add() first")
        return self._weight


class MemberVariance:
    """The variance over members of each entry of their predictions, one member at a time.

    With predictions p_k and weights w_k of the members, and their mean p, the variance is the sum over k of
    w_k (p_k - p)^2, where the weights are divided by their sum.

    Args:
        name: The name of the metric, which is the mean over all entries.
        entries: Selects the entries of predictions to measure; all if None.

    Example:
        >>> import torch
        >>> from pfge.tasks import MemberVariance
        >>> variance = MemberVariance()
        >>> variance.add(torch.tensor([[1.0, 2.0]]))
        >>> variance.add(torch.tensor([[3.0, 2.0]]))
        >>> variance.values()
        tensor([[1., 0.]], dtype=torch.float64)
    """

    def __init__(self, name: str = "variance", entries: Callable[[Tensor], Tensor] | None = None) -> None:
        self._name = name
        self._entries = entries or (lambda predictions: predictions)
        self._pool = MixturePool()

    def add(self, predictions: Tensor, weight: float = 1.0) -> None:
        """Add one more member's predictions."""
        entries = self._entries(predictions)
        self._pool.add(torch.stack([entries, torch.zeros_like(entries)], dim=-1), weight)

    def values(self) -> Tensor:
        """Return the variance of each entry."""
        return self._pool.variance_of_means()

    def metrics(self, pooled: Tensor) -> dict[str, float]:  # noqa: ARG002
        """Return the mean over all entries; nothing for a single member."""
        return {self._name: self.values().mean().item()} if self._pool.members > 1 else {}


class Pool(Protocol):
    """Pools members' predictions, added one by one, in the memory of one member's predictions.

    A member counts by its fraction of the sum of all weights.

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


class DiversityAccumulator(Protocol):
    """Measures how much members differ, from one member's predictions at a time.

    A member's weight is the one that it has in the pool; metrics that compare pairs of members may ignore it.

    Example:
        >>> import torch
        >>> from pfge.tasks import Classification
        >>> diversity = Classification().diversity()
        >>> diversity.add(torch.tensor([[1.0, 0.0]]))
        >>> diversity.add(torch.tensor([[0.0, 1.0]]))
        >>> diversity.metrics(torch.tensor([[0.5, 0.5]]))
        {'mutual_information': 0.6931471805599453, 'disagreement': 1.0}
    """

    def add(self, predictions: Tensor, weight: float = 1.0) -> None:
        """Add one more member's predictions."""

    def metrics(self, pooled: Tensor) -> dict[str, float]:
        """Return metrics by name; `pooled` is the pooled prediction of the members that were added."""


class Task(ABC):
    """Defines what a model's outputs and the targets mean.

    A task is a value: a frozen dataclass whose fields are its options, numbers or strings that JSON can hold.
    Two tasks with the same options are equal, and `repr` is the constructor call.

    A calibration is one positive number, or one for each label, fitted on held-out predictions; 1 leaves
    predictions as they are.

    Example:
        >>> from pfge.tasks import Regression, Task
        >>> isinstance(Regression(), Task)
        True
        >>> [metric.name for metric in Regression().metrics]
        ['rmse', 'nll', 'crps', 'coverage']
    """

    result_type: ClassVar[torch.dtype | None] = None
    """The type of an ensemble's predictions; the type of a member's predictions if None. Members are pooled
    in the type of `predictions`, which may be wider."""

    @property
    @abstractmethod
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics computed from scores: the columns of every table, the most important first.

        A task whose examples may have several shapes lists the metrics of all shapes; `Metric.of` is the
        class of scores that a metric needs.
        """

    @property
    def needs_calibration(self) -> bool:
        """Whether predictors must be calibrated before metrics that use confidence compare them."""
        return False

    @property
    def has_calibration(self) -> bool:
        """Whether a calibration changes predictions; if not, `Ensemble.calibrated` refuses the task."""
        return True

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Return the scalar that training minimizes.

        Args:
            outputs: The model's outputs for a batch.
            targets: The true answers.
            reduction: "mean" over examples, or "sum" for the mean times their number, which can be added
                over batches of any size.
        """

    def targets_of(self, batch: Any, at: TargetsAt = None) -> Tensor:
        """Return the targets of a batch; a task may refuse targets that are clearly a mistake.

        Args:
            batch: Inputs and targets.
            at: The index, the key, or a function of the batch. If None, targets are the second entry of a
                pair, or the `labels` of a dict.
        """
        return targets_of(batch, at)

    def check_outputs(self, outputs: Any) -> bool:  # noqa: ARG002
        """Refuse outputs whose values show that they are of another kind.

        An ensemble calls this for its first batches until it returns True, which means that a batch was
        enough to decide.
        """
        return True

    @abstractmethod
    def predictions(self, outputs: Any) -> Tensor:
        """Return predictions for a model's outputs, examples first.

        Raises:
            ValueError: The outputs are of another shape or kind than this task's.
        """

    @abstractmethod
    def pool(self) -> Pool:
        """Return an empty pool of members' predictions."""

    @abstractmethod
    def diversity(self) -> DiversityAccumulator:
        """Return an accumulator of how much members' predictions differ."""

    def diversity_at(self, targets: Tensor) -> DiversityAccumulator:  # noqa: ARG002
        """Return an accumulator of how much predictions differ where targets count; by default everywhere."""
        return self.diversity()

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
            ValueError: The task does not define it.
        """
        raise InvalidValueError(
            f"distillation needs a task with divergence_loss, got {self}; implement it, or leave distil out"
        )

    @abstractmethod
    def fit_calibration(self, predictions: Tensor, targets: Tensor) -> Calibration:
        """Return the calibration that makes the targets most likely; 1, with a warning, if none does."""

    @abstractmethod
    def calibrate(self, predictions: Tensor, calibration: Calibration | Tensor) -> Tensor:
        """Return predictions, a member's or pooled ones, at a calibration.

        Args:
            predictions: Predictions for any number of examples.
            calibration: The result of `fit_calibration`. In the graph of an export it is a tensor.
        """

    def calibration_sample(self, predictions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predictions and targets to fit a calibration on; by default all of them.

        A task with large predictions keeps a few for each example. The choice depends on the targets alone,
        so it is the same for each member.
        """
        return predictions, targets

    def summarize(self, scores: ExampleScores) -> dict[str, float]:
        """Return the metrics of scored examples by name."""
        return {
            metric.name: metric.compute(scores) for metric in self.metrics if isinstance(scores, metric.of)
        }

    def metric(self, name: str) -> Metric:
        """Return the metric with a given name."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        known = ", ".join(metric.name for metric in self.metrics)
        raise InvalidValueError(f"the metrics of {self} are {known}, got {name!r}")
