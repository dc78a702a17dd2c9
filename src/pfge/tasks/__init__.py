"""What outputs, targets and pooling mean: a task for each kind of problem."""

from pfge.tasks.base import Pool, Spread, Task
from pfge.tasks.classification import Classification
from pfge.tasks.mean_pool import MeanPool
from pfge.tasks.metric import Metric
from pfge.tasks.mixture_pool import MixturePool
from pfge.tasks.multi_label import MultiLabel
from pfge.tasks.regression import Regression

__all__ = [
    "Classification",
    "MeanPool",
    "Metric",
    "MixturePool",
    "MultiLabel",
    "Pool",
    "Regression",
    "Spread",
    "Task",
]
