"""A metric as a value: how it is computed from scores, and how tables and figures show it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor


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
        score: The score of each example whose mean the metric is. Differences between methods can be tested
            only where there is one.
        weight: The score that says how much an example counts, if there is one of that name: the metric is
            then the sum of the scores over the sum of the weights.
        aim: The best value, where `better` is "closer".
        of: The kind of scores that it can be computed from.
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
        """Return numbers of examples whose mean the metric is, [N]; None if there are none.

        They are the scores, or, with weights w, the scores divided by the mean of w. So differences of two
        predictors on the same examples have the mean that the metrics' difference is.

        Args:
            scores: By name, as `ExampleScores.tensors` or a file that was saved of them.
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
        """What a value is multiplied by where it is shown."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def head(self) -> str:
        """The head of its column."""
        return f"{self.label} {self.unit}".rstrip()
