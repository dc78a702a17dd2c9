"""An ensemble's accuracy and calibration from one training run, in the memory of a few models."""

from pfge.batch_norm import refresh_batch_norm
from pfge.checkpoint import load_checkpoint, save_checkpoint
from pfge.collectors import EMA, FGE, PFGE, SWA, SWAG, Collector, Restart
from pfge.ensemble import Ensemble
from pfge.metrics import accuracy, brier_score, expected_calibration_error, negative_log_likelihood
from pfge.schedules import Constant, CosineRestarts, Joined, LinearDecay, Triangular
from pfge.storage import StorageError
from pfge.training import follow
from pfge.trajectory import Trajectory
from pfge.weights import (
    Weights,
    average_into,
    copy_weights,
    distance,
    interpolate,
    load_weights,
    view_weights,
)

__version__ = "0.1.0"

__all__ = [
    "EMA",
    "FGE",
    "PFGE",
    "SWA",
    "SWAG",
    "Collector",
    "Constant",
    "CosineRestarts",
    "Ensemble",
    "Joined",
    "LinearDecay",
    "Restart",
    "StorageError",
    "Trajectory",
    "Triangular",
    "Weights",
    "accuracy",
    "average_into",
    "brier_score",
    "copy_weights",
    "distance",
    "expected_calibration_error",
    "follow",
    "interpolate",
    "load_checkpoint",
    "load_weights",
    "negative_log_likelihood",
    "refresh_batch_norm",
    "save_checkpoint",
    "view_weights",
]
