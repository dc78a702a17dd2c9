"""How good predictions are, how uncertain, and which differences are more than noise."""

from pfge.metrics.gaussian_scores import GaussianScores, score_gaussians
from pfge.metrics.label_scores import LabelScores, score_labels
from pfge.metrics.position_scores import PositionScores, score_positions
from pfge.metrics.scores import (
    ExampleScores,
    Reliability,
    Scores,
    SquaredErrors,
    accuracy,
    area_under_risk_coverage,
    brier_score,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
    reliability,
    score_examples,
    score_squared_errors,
)
from pfge.metrics.significance import (
    Difference,
    SeedDifference,
    paired_bootstrap,
    paired_bootstrap_of,
    paired_bootstraps,
    seed_difference,
)
from pfge.metrics.uncertainty import disagreement, kl_divergence, mutual_information, predictive_entropy

__all__ = [
    "Difference",
    "ExampleScores",
    "GaussianScores",
    "LabelScores",
    "PositionScores",
    "Reliability",
    "Scores",
    "SeedDifference",
    "SquaredErrors",
    "accuracy",
    "area_under_risk_coverage",
    "brier_score",
    "disagreement",
    "expected_calibration_error",
    "kl_divergence",
    "maximum_calibration_error",
    "mutual_information",
    "negative_log_likelihood",
    "paired_bootstrap",
    "paired_bootstrap_of",
    "paired_bootstraps",
    "predictive_entropy",
    "reliability",
    "score_examples",
    "score_gaussians",
    "score_labels",
    "score_positions",
    "score_squared_errors",
    "seed_difference",
]
