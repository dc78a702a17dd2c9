"""What outputs, targets and pooling mean: a task for each kind of problem."""

from pfge.tasks.classification import Classification
from pfge.tasks.metric import Metric

__all__ = ["Classification", "Metric"]
