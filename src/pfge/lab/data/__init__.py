"""Data sets: explicit splits, and batches that are pure functions of a seed and an iteration."""

from pfge.lab.data.base import IMAGENET_NORMALIZATION, DataError, DataWarning, Normalization
from pfge.lab.data.batches import (
    Augmentation,
    Batch,
    DataPart,
    EvaluationBatches,
    TrainingBatches,
    evaluation_batches,
    training_batches,
)
from pfge.lab.data.datasets import DatasetSplits
from pfge.lab.data.in_memory import ImageSet, TensorSet
from pfge.lab.data.registry import default_root, load_data
from pfge.lab.data.splits import Splits, split, take, validation_from_test

__all__ = [
    "IMAGENET_NORMALIZATION",
    "Augmentation",
    "Batch",
    "DataError",
    "DataPart",
    "DataWarning",
    "DatasetSplits",
    "EvaluationBatches",
    "ImageSet",
    "Normalization",
    "Splits",
    "TensorSet",
    "TrainingBatches",
    "default_root",
    "evaluation_batches",
    "load_data",
    "split",
    "take",
    "training_batches",
    "validation_from_test",
]
