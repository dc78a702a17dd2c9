"""What outputs, targets and pooling mean: a task for each kind of problem."""

from pfge.tasks.base import DiversityAccumulator, MeanPool, MemberVariance, Metric, MixturePool, Pool, Task
from pfge.tasks.causal_lm import CausalLM
from pfge.tasks.classification import Classification
from pfge.tasks.multi_label import MultiLabel
from pfge.tasks.raw import Raw
from pfge.tasks.regression import Regression

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
