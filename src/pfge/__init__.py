"""An ensemble's accuracy and calibration from one training run, in the memory of a few models.

The names here are what a training loop and a prediction need. The rest is in submodules that `import pfge`
makes available: `pfge.calibration`, `pfge.collectors`, `pfge.compression`, `pfge.connectivity`,
`pfge.metrics`, `pfge.schedules`, `pfge.storage`, `pfge.tasks` and `pfge.weights`.
"""

from pfge import (
    calibration,
    collectors,
    compression,
    connectivity,
    metrics,
    schedules,
    storage,
    tasks,
    weights,
)
from pfge.batch_norm import refresh_batch_norm
from pfge.cascade import Cascade, fit_cascade
from pfge.collectors import EMA, FGE, PFGE, SWA, SWAG, Collector, Restart
from pfge.compression import Bits, Budget, MaxLoss, compress
from pfge.ensemble import Ensemble
from pfge.schedules import Constant, CosineRestarts, Triangular
from pfge.storage import StorageError, load_checkpoint, save_checkpoint
from pfge.trajectory import Trajectory, follow
from pfge.weights import Weights, load_weights

__version__ = "0.1.0"

__all__ = [
    "EMA",
    "FGE",
    "PFGE",
    "SWA",
    "SWAG",
    "Bits",
    "Budget",
    "Cascade",
    "Collector",
    "Constant",
    "CosineRestarts",
    "Ensemble",
    "MaxLoss",
    "Restart",
    "StorageError",
    "Trajectory",
    "Triangular",
    "Weights",
    "calibration",
    "collectors",
    "compress",
    "compression",
    "connectivity",
    "fit_cascade",
    "follow",
    "load_checkpoint",
    "load_weights",
    "metrics",
    "refresh_batch_norm",
    "save_checkpoint",
    "schedules",
    "storage",
    "tasks",
    "weights",
]
