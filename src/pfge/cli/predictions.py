"""One example's prediction as JSON and as text, for each kind of task."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pfge.tasks import MultiLabel, Raw, Regression, Task
from pfge.tasks.classification import require_one_class

CLASSES = 3
"""Classes that are printed if nothing else is asked for."""


def describe(task: Task, predictions: Tensor, names: Sequence[str], top: int | None) -> dict[str, Any]:
    """Return one example's prediction as JSON: classes, labels, mean and standard deviation, or outputs.

    Args:
        task: What the prediction means.
        predictions: Of the example, without the dimension of examples.
        names: Of the classes or labels; numbers from 0 if there are none.
        top: How many classes or labels, the most probable first; None for 3 classes, or all labels in order.
    """
    if isinstance(task, Regression):
        mean, variance = predictions.double().unbind(-1)
        return {"mean": mean.tolist(), "standard_deviation": variance.sqrt().tolist()}
    if isinstance(task, Raw):
        return {"outputs": predictions.tolist()}
    require_one_class(predictions[None], "pfge predict")
    named = names or [str(number) for number in range(len(predictions))]
    if isinstance(task, MultiLabel) and top is None:
        return {"labels": dict(zip(named, predictions.tolist(), strict=True))}
    best = predictions.topk(min(top or CLASSES, len(named)))
    found = {named[c]: p for p, c in zip(best.values.tolist(), best.indices.tolist(), strict=True)}
    return {"labels" if isinstance(task, MultiLabel) else "classes": found}


def explain(described: dict[str, Any]) -> str:
    """Return what `describe` returned as text for people."""
    match described:
        case {"mean": means, "standard_deviation": deviations}:
            return ", ".join(f"{m:.4g} ± {s:.2g}" for m, s in zip(means, deviations, strict=True))
        case {"outputs": outputs}:
            return str(outputs)
    (found,) = described.values()
    return ", ".join(f"{name} {100 * p:.1f} %" for name, p in found.items())
