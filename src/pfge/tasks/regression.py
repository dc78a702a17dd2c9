"""Numbers: a mean and a variance, or outputs of any meaning."""

import math
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from pfge.calibration import Calibration, fit_noise_variance, fit_variance_factor, require_temperature
from pfge.errors import InvalidValueError
from pfge.metrics.scores import SMALLEST, GaussianScores, SquaredErrors, score_gaussians, score_squared_errors
from pfge.tasks.base import MeanPool, MemberVariance, Metric, MixturePool, Task


@dataclass(frozen=True)
class Regression(Task):
    """D numbers for each example; targets are [N] or [N, D].

    | noise | outputs | |
    |---|---|---|
    | "fixed" | [N] or [N, D] | means; the loss is the mean squared error |
    | "predicted" | [N, 2] or [N, D, 2] | means and the logarithms of variances; the loss is the NLL |

    Predictions are [N, D, 2], means and variances, so that `[..., 0]` are the means. Members are pooled as a
    mixture: with means m_k and variances v_k of K members,

        mean = (1 / K) * sum over k of m_k
        variance = (1 / K) * sum over k of v_k + (1 / K) * sum over k of (m_k - mean)^2

    Pooled predictions are scored as the normal distribution of this mean and variance.

    The calibration is a factor on the variance, as N(m, v) to the power 1 / T is N(m, T v) up to its scale.
    For "fixed" noise, members predict the variance 1, and the factor is on this part of the pooled variance
    alone: it is the variance of the noise. Without it, NLL, CRPS and coverage depend on the unit of the
    targets.

    Args:
        noise: Whether one variance is fitted to all examples afterwards, or the model predicts it for each.

    References:
        Lakshminarayanan, Pritzel, Blundell, "Simple and Scalable Predictive Uncertainty Estimation using
        Deep Ensembles", NeurIPS 2017.

    Example:
        Two members predict 1 and 3 with a variance of 1:

        >>> import torch
        >>> from pfge.tasks import Regression
        >>> task, pool = Regression(noise="predicted"), Regression(noise="predicted").pool()
        >>> for mean in (1.0, 3.0):
        ...     pool.add(task.predictions(torch.tensor([[mean, 0.0]])))
        >>> pool.result()  # 1 and 1 of the difference
        tensor([[[2., 2.]]], dtype=torch.float64)
        >>> task.calibrate(pool.result(), 1.5)
        tensor([[[2., 3.]]], dtype=torch.float64)
        >>> task.summarize(task.score(pool.result(), torch.tensor([2.5])))["rmse"]
        0.5
    """

    noise: Literal["fixed", "predicted"] = "fixed"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "rmse",
            "RMSE",
            "lower",
            methodcaller("root_mean_squared_error"),
            is_main=True,
            uses_confidence=False,
        ),
        Metric(
            "nll", "NLL", "lower", methodcaller("negative_log_likelihood"), score="log_loss", is_main=True
        ),
        Metric("crps", "CRPS", "lower", methodcaller("mean_crps"), score="crps", is_main=True),
        Metric(
            "coverage",
            "90% coverage",
            "closer",
            methodcaller("coverage"),
            "%",
            2,
            "covered",
            is_main=True,
            aim=0.9,
        ),
    )

    def __post_init__(self) -> None:
        if self.noise not in ("fixed", "predicted"):
            raise InvalidValueError(f'noise must be "fixed" or "predicted", got {self.noise!r}')

    @property
    def needs_calibration(self) -> bool:
        """Whether NLL, CRPS and coverage depend on the unit of the targets until the noise is fitted."""
        return self.noise == "fixed"

    def loss(self, outputs: Tensor, targets: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Return the mean squared error, or the negative log-likelihood if variances are predicted."""
        means, log_variances = self._split(outputs)
        if targets.numel() != means.numel() or len(targets) != len(means):
            raise InvalidValueError(
                f"{self} takes targets [N] or [N, D] for outputs {list(outputs.shape)}, got "
                f"{list(targets.shape)}"
            )
        # Of one shape: [N, 1] and [N] would otherwise give all N^2 differences.
        squares = (targets.reshape(means.shape) - means).square()
        if log_variances is None:
            mean = squares.mean()
        else:
            mean = (log_variances + math.log(2 * math.pi) + squares * (-log_variances).exp()).mean() / 2
        return mean if reduction == "mean" else mean * len(targets)

    def predictions(self, outputs: Any) -> Tensor:
        """Return means and variances, [N, D, 2], in float32.

        A predicted variance below the smallest normal float32 counts as that.
        """
        if not isinstance(outputs, Tensor):
            raise InvalidValueError(
                f"{self} takes a tensor of numbers, got {type(outputs).__name__}; pass forward= to pick it"
            )
        means, log_variances = self._split(outputs)
        means = means.float()
        if log_variances is None:
            variances = torch.ones_like(means)
        else:
            variances = log_variances.float().exp().clamp(min=SMALLEST)
        return torch.stack([means, variances], dim=-1)

    def pool(self) -> MixturePool:
        """Return an empty pool: mean and variance of the mixture of members."""
        return MixturePool()

    def diversity(self) -> MemberVariance:
        """Return an accumulator of how much members' means differ."""
        return MemberVariance("variance_of_means", lambda predictions: predictions[..., 0])

    def score(self, predictions: Tensor, targets: Tensor) -> GaussianScores:
        """Return the scores of each example."""
        return score_gaussians(predictions, targets)

    def divergence(self, expected: Tensor, predictions: Tensor) -> float:
        """Return the mean over numbers of KL(expected || predictions) of normal distributions, in nats."""
        if expected.shape != predictions.shape or expected.shape[-1] != 2:
            raise InvalidValueError(
                f"the divergence takes two predictions [N, D, 2], got {list(expected.shape)} and "
                f"{list(predictions.shape)}"
            )
        return self.divergence_loss(expected, predictions).item()

    def divergence_loss(self, expected: Tensor, predictions: Tensor) -> Tensor:
        """Return the divergence with its gradient."""
        (m, v), (n, w) = expected.double().unbind(dim=-1), predictions.double().unbind(dim=-1)
        return ((w / v).log() + (v + (m - n).square()) / w - 1).mean() / 2

    def fit_calibration(self, predictions: Tensor, targets: Tensor) -> float:
        """Return the factor on the variance; see `fit_noise_variance` and `fit_variance_factor`."""
        fit = fit_noise_variance if self.noise == "fixed" else fit_variance_factor
        return fit(predictions, targets)

    def calibrate(self, predictions: Tensor, calibration: Calibration | Tensor) -> Tensor:
        """Return predictions with the variance, or its part of fixed noise, times a factor."""
        factor = require_temperature(calibration)
        if not isinstance(factor, Tensor) and factor == 1:
            return predictions
        means, variances = predictions.unbind(dim=-1)
        scaled = variances - 1 + factor if self.noise == "fixed" else variances * factor
        return torch.stack([means, scaled], dim=-1)

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return means [N, D] and, if they are predicted, the logarithms of variances [N, D]."""
        shape = list(outputs.shape)
        if self.noise == "fixed":
            if outputs.ndim not in (1, 2):
                raise InvalidValueError(f"{self} takes means [N] or [N, D], got {shape}")
            return outputs.reshape(len(outputs), -1) if outputs.ndim == 1 else outputs, None
        if outputs.ndim not in (2, 3) or shape[-1] != 2:
            raise InvalidValueError(
                f"{self} takes means and logarithms of variances, [N, 2] or [N, D, 2], got {shape}"
            )
        wide = outputs if outputs.ndim == 3 else outputs.unsqueeze(1)
        return wide[..., 0], wide[..., 1]


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
        """False, because raw outputs carry no confidence."""
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
