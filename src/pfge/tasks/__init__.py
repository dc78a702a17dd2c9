"""What outputs, targets and pooling mean: a task for each kind of problem."""

from pfge.tasks.base import Pool, Spread, Task
from pfge.tasks.classification import Classification
from pfge.tasks.mean_pool import MeanPool
from pfge.tasks.metric import Metric

__all__ = ["Classification", "MeanPool", "Metric", "Pool", "Spread", "Task"]
