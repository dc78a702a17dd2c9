"""Outputs of any meaning: embeddings, images of a generator, heads of one's own."""

from dataclasses import dataclass
from operator import methodcaller
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn.functional import mse_loss

from pfge.calibration import Calibration, require_temperature
from pfge.errors import InvalidValueError
from pfge.metrics.scores import SquaredErrors, score_squared_errors
from pfge.tasks.base import MeanPool, MemberVariance, Metric, Task


@dataclass(frozen=True)
class Raw(Task):
    """Outputs of any shape [N, ...], taken as they are: no softmax, and no calibration.

    The pooled prediction is the mean of the members' outputs, in their own type. `diversity` gives the mean
    variance over members, and `Ensemble.predict_variance` the variance of each entry. Targets have the shape
    of the outputs; the loss and the only metric is the mean squared error. `compress` measures its loss by
    the divergence, which is half the mean squared difference: the KL divergence of normal distributions with
    the variance 1, in the unit of the outputs.

    Example:
        Two members embed an example as (1, 2) and (3, 2):

        >>> import torch
        >>> from pfge.tasks import Raw
        >>> task = Raw()
        >>> pool, diversity = task.pool(), task.diversity()
        >>> for member in (torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 2.0]])):
        ...     pool.add(member)
        ...     diversity.add(member)
        >>> pool.result()
        tensor([[2., 2.]], dtype=torch.float64)
        >>> diversity.metrics(pool.result())  # 1 of the first entry, 0 of the second
        {'variance': 0.5}
        >>> task.summarize(task.score(pool.result(), torch.tensor([[2.0, 4.0]])))
        {'mse': 2.0}
    """

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "mse",
            "MSE",
            "lower",
            methodcaller("mean_squared_error"),
            score="squared_error",
            is_main=True,
            uses_confidence=False,
        ),
    )

    def loss(self, outputs: Tensor, targets: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Return the mean squared error, in the outputs' own type."""
        if outputs.shape != targets.shape:
            raise InvalidValueError(
                f"{self} takes targets of the shape of the outputs, {list(outputs.shape)}, got "
                f"{list(targets.shape)}"
            )
        mean = mse_loss(outputs, targets)
        return mean if reduction == "mean" else mean * len(targets)

    def predictions(self, outputs: Any) -> Tensor:
        """Return the outputs themselves."""
        if not isinstance(outputs, Tensor) or not outputs.is_floating_point() or not outputs.ndim:
            found = (
                f"{outputs.dtype} {list(outputs.shape)}"
                if isinstance(outputs, Tensor)
                else type(outputs).__name__
            )
            raise InvalidValueError(
                f"{self} takes a tensor of floating-point numbers [N, ...], got {found}; pass forward= to "
                "pick or convert it"
            )
        return outputs

    def pool(self) -> MeanPool:
        """Return an empty pool: the mean of members' outputs."""
        return MeanPool()

    def diversity(self) -> MemberVariance:
        """Return an accumulator of the variance over members."""
        return MemberVariance()

    def score(self, predictions: Tensor, targets: Tensor) -> SquaredErrors:
        """Return the mean squared error of each example."""
        return score_squared_errors(predictions, targets)

    def divergence(self, expected: Tensor, predictions: Tensor) -> float:
        """Return half the mean squared difference."""
        if expected.shape != predictions.shape:
            raise InvalidValueError(
                f"the divergence takes two predictions of one shape, got {list(expected.shape)} and "
                f"{list(predictions.shape)}"
            )
        return self.divergence_loss(expected, predictions).item()

    def divergence_loss(self, expected: Tensor, predictions: Tensor) -> Tensor:
        """Return the divergence with its gradient."""
        return (expected.double() - predictions.double()).square().mean() / 2

    @property
    def has_calibration(self) -> bool:
        """Whether there is one: raw outputs do not say how sure they are."""
        return False

    def fit_calibration(self, predictions: Tensor, targets: Tensor) -> float:  # noqa: ARG002
        """Return 1, which leaves outputs as they are."""
        return 1.0

    def calibrate(self, predictions: Tensor, calibration: Calibration | Tensor) -> Tensor:
        """Return the predictions; a calibration other than 1 is refused."""
        factor = require_temperature(calibration)
        if not isinstance(factor, Tensor) and factor == 1:
            return predictions
        raise InvalidValueError(f"{self} has no calibration, got {calibration}; use Ensemble.uncalibrated()")
