"""A metric as a value: how it is computed from scores, and how tables and figures show it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Metric:
    """One number that says how good predictions are.

    Args:
        name: Its key in results, as `nll`.
        label: Its name in tables, as `NLL`.
        better: Whether higher or lower values are better.
        compute: Returns the value from a task's scores.
        unit: "%" where the value is a share that is shown in percent.
        digits: Decimals in tables, after the conversion to the unit.
        score: The score of each example whose mean the metric is. Differences between methods can be tested
            only where there is one.
        is_main: Whether it has a column in the main table of a comparison.
        uses_confidence: Whether it depends on how sure predictions are, so that a temperature changes it.

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
    better: Literal["higher", "lower"]
    compute: Callable[[Any], float]
    unit: Literal["", "%"] = ""
    digits: int = 4
    score: str | None = None
    is_main: bool = False
    uses_confidence: bool = True

    @property
    def factor(self) -> float:
        """What a value is multiplied by where it is shown."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def head(self) -> str:
        """The head of its column."""
        return f"{self.label} {self.unit}".rstrip()
