"""Calibration on held-out predictions: temperatures (Guo et al. 2017), variances, weights of members."""

from pfge.calibration.pooling import (
    PoolingWeights,
    SharedTemperature,
    fit_pooling_weights,
    fit_shared_temperature,
)
from pfge.calibration.temperatures import UNSCALED as UNSCALED
from pfge.calibration.temperatures import CalibrateBy as CalibrateBy
from pfge.calibration.temperatures import Calibration as Calibration
from pfge.calibration.temperatures import (
    Temperature,
    Temperatures,
    fit_label_temperatures,
    fit_member_temperatures,
    fit_noise_variance,
    fit_temperature,
    fit_variance_factor,
    log_probabilities,
    scale_label_probabilities,
    scale_logits,
    scale_probabilities,
)
from pfge.calibration.temperatures import require_temperature as require_temperature

__all__ = [
    "PoolingWeights",
    "SharedTemperature",
    "Temperature",
    "Temperatures",
    "fit_label_temperatures",
    "fit_member_temperatures",
    "fit_noise_variance",
    "fit_pooling_weights",
    "fit_shared_temperature",
    "fit_temperature",
    "fit_variance_factor",
    "log_probabilities",
    "scale_label_probabilities",
    "scale_logits",
    "scale_probabilities",
]
