"""Data sets: explicit splits, and batches that are pure functions of a seed and an iteration."""

from pfge.lab.data.datasets.splits import DatasetSplits
from pfge.lab.data.in_memory.augmentation import Augmentation
from pfge.lab.data.in_memory.batches import EvaluationBatches, TrainingBatches
from pfge.lab.data.in_memory.image_set import (
    IMAGENET_NORMALIZATION,
    DataError,
    DataWarning,
    ImageSet,
    Normalization,
)
from pfge.lab.data.in_memory.tensor_set import TensorSet
from pfge.lab.data.registry import default_root, load_data
from pfge.lab.data.sources import (
    Batch,
    BatchedPart,
    DataPart,
    EvaluationSource,
    TrainingSource,
    evaluation_batches,
    training_batches,
)
from pfge.lab.data.splits import Splits, halve_test, split, take

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
