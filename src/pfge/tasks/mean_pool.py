"""Pooling by the mean."""

import torch
from torch import Tensor


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
            raise ValueError(
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
            raise ValueError("a pool needs at least one member, got none; call add() first")
        return self._total


def sum_type(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64
