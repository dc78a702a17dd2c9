"""Tasks define outputs, targets and pooling for each kind of problem; and their entries in manifests."""

from dataclasses import asdict
from typing import Any

from pfge.errors import InvalidValueError
from pfge.tasks.base import DiversityAccumulator, MeanPool, MemberVariance, Metric, MixturePool, Pool, Task
from pfge.tasks.classification import AssumedClassification, CausalLM, Classification
from pfge.tasks.multi_label import MultiLabel
from pfge.tasks.regression import Raw, Regression

__all__ = [
    "CausalLM",
    "Classification",
    "DiversityAccumulator",
    "MeanPool",
    "MemberVariance",
    "Metric",
    "MixturePool",
    "MultiLabel",
    "Pool",
    "Raw",
    "Regression",
    "Task",
]

DEFAULT_TASK = AssumedClassification()
"""The task of ensembles and manifests without a task: logits [N, C] only."""
KNOWN: dict[str, type[Task]] = {
    task.__name__: task for task in (Classification, CausalLM, MultiLabel, Regression, Raw)
}


def task_to_manifest(task: Task) -> dict[str, Any] | None:
    """Return a task's entry; None for the default, which manifests leave out."""
    if task == DEFAULT_TASK:
        return None
    return {"name": type(task).__name__, "options": asdict(task)}  # type: ignore[call-overload]


def task_from_manifest(entry: Any) -> Task:
    """Return the task of an entry, or the default for None.

    Raises:
        ValueError: The entry is malformed, or names a task or an option that this version does not know.
    """
    match entry:
        case None:
            return DEFAULT_TASK
        case {"name": str(name), "options": dict(options)} if name in KNOWN:
            try:
                return KNOWN[name](**options)
            except (TypeError, ValueError) as error:
                raise InvalidValueError(f"task has options that {name} does not take: {error}") from None
        case {"name": str(name), "options": dict()}:
            raise InvalidValueError(
                f"task must be one that this version knows, {', '.join(KNOWN)}, got {name!r}; update pfge, "
                "or pass task= if it is your own"
            )
    raise InvalidValueError(f"task must have a name and options, got {entry!r}")
