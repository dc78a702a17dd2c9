"""What outputs, targets and pooling mean: a task for each kind of problem."""

from pfge.tasks.base import Pool, Spread, Task
from pfge.tasks.classification import Classification, require_classification
from pfge.tasks.manifest import DEFAULT_TASK, task_from_manifest, task_to_manifest
from pfge.tasks.mean_pool import MeanPool
from pfge.tasks.metric import Metric

__all__ = [
    "DEFAULT_TASK",
    "Classification",
    "MeanPool",
    "Metric",
    "Pool",
    "Spread",
    "Task",
    "require_classification",
    "task_from_manifest",
    "task_to_manifest",
]
