"""Predictions divided by temperatures, as logits or as probabilities."""

import torch
from torch import Tensor

from pfge.calibration.temperatures import Calibration, require_temperature, require_temperatures
from pfge.metrics.checks import SMALLEST, require_probabilities


def log_probabilities(probabilities: Tensor) -> Tensor:
    """Return log p, to serve as logits; a p below the smallest normal float32 counts as that.

    Args:
        probabilities: [N, C], each row summing to one.

    Example:
        >>> import torch
        >>> from pfge.calibration import log_probabilities
        >>> log_probabilities(torch.tensor([[1.0, 0.0]]))
        tensor([[  0.0000, -87.3365]])
    """
    require_probabilities(probabilities)
    return _log(probabilities)


def scale_logits(logits: Tensor, temperature: float) -> Tensor:
    """Return logits / T.

    Args:
        logits: Of any shape.
        temperature: Above 0.

    Example:
        >>> import torch
        >>> from pfge.calibration import scale_logits
        >>> scale_logits(torch.tensor([[2.0, 0.0]]), temperature=4.0)
        tensor([[0.5000, 0.0000]])
    """
    require_temperature(temperature)
    return logits / temperature


def scale_probabilities(probabilities: Tensor, temperature: Calibration | Tensor, dim: int = -1) -> Tensor:
    """Return softmax(log p / T) along the classes; the probabilities themselves if T is 1.

    Each probability is raised to the power 1 / T, and all are divided by their sums over the classes.

    Args:
        probabilities: [N, C], or of any shape, summing to one along the classes.
        temperature: Above 0.
        dim: The dimension of the classes.

    Example:
        >>> import torch
        >>> from pfge.calibration import scale_probabilities
        >>> scale_probabilities(torch.tensor([[0.75, 0.25]]), temperature=0.5)  # 9 to 1
        tensor([[0.9000, 0.1000]])
    """
    temperature = require_temperature(temperature)
    if not isinstance(temperature, Tensor) and temperature == 1:
        return probabilities
    return (_log(probabilities) / temperature).softmax(dim=dim).to(probabilities.dtype)


def scale_label_probabilities(probabilities: Tensor, temperatures: Calibration | Tensor) -> Tensor:
    """Return sigmoid(logit(p) / T) for each label; the probabilities themselves if T is 1.

    Args:
        probabilities: Of each label, [N, L].
        temperatures: One for each of L labels, or one for all.

    Example:
        >>> import torch
        >>> from pfge.calibration import scale_label_probabilities
        >>> scale_label_probabilities(torch.tensor([[0.75, 0.75]]), (0.5, 1.0))  # 9 to 1, and 3 to 1
        tensor([[0.9000, 0.7500]])
    """
    if not isinstance(temperatures, Tensor):
        require_temperatures(temperatures)
        if temperatures == 1:
            return probabilities
        if isinstance(temperatures, tuple) and len(temperatures) != probabilities.shape[-1]:
            raise ValueError(
                f"each of {probabilities.shape[-1]} labels has a temperature, got {len(temperatures)} "
                f"for predictions {list(probabilities.shape)}"
            )
        temperatures = torch.tensor(temperatures, device=probabilities.device)
    wide = probabilities.to(torch.promote_types(probabilities.dtype, torch.float32))
    return (logit(wide) / temperatures.to(wide.dtype)).sigmoid().to(probabilities.dtype)


def logit(probabilities: Tensor) -> Tensor:
    """Return log(p / (1 - p)), finite for a p of 0 or 1 too."""
    return probabilities.clamp(min=SMALLEST).log() - (1 - probabilities).clamp(min=SMALLEST).log()


def _log(probabilities: Tensor) -> Tensor:
    wide = probabilities.to(torch.promote_types(probabilities.dtype, torch.float32))
    return wide.clamp(min=SMALLEST).log()
