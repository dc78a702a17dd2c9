"""Pooling of means and variances as a mixture."""

import torch
from torch import Tensor

from pfge.tasks.mean_pool import sum_type


class MixturePool:
    """Mean and variance of the mixture of members' distributions, with m_k and v_k of each member.

        mean = sum over k of w_k m_k
        variance = sum over k of w_k v_k + sum over k of w_k (m_k - mean)^2

    The weights are divided by their sum, so that they are w_k = 1 / K if each of K members has the same.

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
            raise ValueError(
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
            raise ValueError("a pool needs at least one member, got none; call add() first")
        return self._weight
