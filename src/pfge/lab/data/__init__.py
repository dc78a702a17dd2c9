"""Data sets: explicit splits, and batches that are pure functions of a seed and an iteration."""

from pfge.lab.data.base import (
    IMAGENET_NORMALIZATION,
    DataError,
    DataWarning,
    ImageSet,
    Normalization,
)
from pfge.lab.data.datasets import DatasetSplits
from pfge.lab.data.in_memory import Augmentation, EvaluationBatches, TensorSet, TrainingBatches
from pfge.lab.data.registry import default_root, load_data
from pfge.lab.data.splits import (
    Batch,
    BatchedPart,
    DataPart,
    EvaluationSource,
    Splits,
    TrainingSource,
    evaluation_batches,
    halve_test,
    split,
    take,
    training_batches,
)

__all__ = [
    "IMAGENET_NORMALIZATION",
    "Augmentation",
    "Batch",
    "BatchedPart",
    "DataError",
    "DataPart",
    "DataWarning",
    "DatasetSplits",
    "EvaluationBatches",
    "EvaluationSource",
    "ImageSet",
    "Normalization",
    "Splits",
    "TensorSet",
    "TrainingBatches",
    "TrainingSource",
    "default_root",
    "evaluation_batches",
    "halve_test",
    "load_data",
    "split",
    "take",
    "training_batches",
]
