"""An ensemble's accuracy and calibration from one training run, in the memory of a few models."""

from pfge.batch_norm import refresh_batch_norm
from pfge.calibration import (
    Temperature,
    Temperatures,
    fit_member_temperatures,
    fit_temperature,
    log_probabilities,
    scale_logits,
    scale_probabilities,
)
from pfge.cascade.cascade import Cascade
from pfge.cascade.fitting import fit_cascade
from pfge.collectors import EMA, FGE, PFGE, SWA, SWAG, Collector, Restart
from pfge.compression import Bits, Budget, MaxLoss, compress
from pfge.connectivity.curves import Bezier, Curve, PolygonalChain
from pfge.connectivity.fitting import fit_curve
from pfge.connectivity.plane import Plane
from pfge.connectivity.tracing import CurveTrace, mode_connectivity, trace_curve
from pfge.ensemble import Ensemble
from pfge.metrics.functional import (
    accuracy,
    area_under_risk_coverage,
    brier_score,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
    reliability,
)
from pfge.metrics.reliability import Reliability
from pfge.metrics.scores import Scores, StreamingScores, score_examples
from pfge.metrics.significance import (
    Difference,
    SeedDifference,
    paired_bootstrap,
    paired_bootstrap_of,
    seed_difference,
)
from pfge.metrics.uncertainty import disagreement, kl_divergence, mutual_information, predictive_entropy
from pfge.schedules import Constant, CosineRestarts, Joined, LinearDecay, Triangular
from pfge.storage.checkpoint import load_checkpoint, save_checkpoint
from pfge.storage.files import StorageError
from pfge.trajectory import Trajectory, follow
from pfge.weights import (
    Weights,
    average_into,
    copy_weights,
    distance,
    interpolate,
    load_weights,
    trained_names,
    view_weights,
)

__version__ = "0.1.0"

__all__ = [
    "EMA",
    "FGE",
    "PFGE",
    "SWA",
    "SWAG",
    "Bezier",
    "Bits",
    "Budget",
    "Cascade",
    "Collector",
    "Constant",
    "CosineRestarts",
    "Curve",
    "CurveTrace",
    "Difference",
    "Ensemble",
    "Joined",
    "LinearDecay",
    "MaxLoss",
    "Plane",
    "PolygonalChain",
    "Reliability",
    "Restart",
    "Scores",
    "SeedDifference",
    "StorageError",
    "StreamingScores",
    "Temperature",
    "Temperatures",
    "Trajectory",
    "Triangular",
    "Weights",
    "accuracy",
    "area_under_risk_coverage",
    "average_into",
    "brier_score",
    "compress",
    "copy_weights",
    "disagreement",
    "distance",
    "expected_calibration_error",
    "fit_cascade",
    "fit_curve",
    "fit_member_temperatures",
    "fit_temperature",
    "follow",
    "interpolate",
    "kl_divergence",
    "load_checkpoint",
    "load_weights",
    "log_probabilities",
    "maximum_calibration_error",
    "mode_connectivity",
    "mutual_information",
    "negative_log_likelihood",
    "paired_bootstrap",
    "paired_bootstrap_of",
    "predictive_entropy",
    "refresh_batch_norm",
    "reliability",
    "save_checkpoint",
    "scale_logits",
    "scale_probabilities",
    "score_examples",
    "seed_difference",
    "trace_curve",
    "trained_names",
    "view_weights",
]
