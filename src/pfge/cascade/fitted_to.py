"""What a cascade was fitted to: the members of an ensemble, and their temperatures and weights."""

import hashlib
import json

from pfge.calibration import Temperatures
from pfge.ensemble import Ensemble
from pfge.errors import InvalidValueError


def temperatures_digest(temperatures: Temperatures, members: int) -> str:
    """Return SHA-256 of the numbers that so many members are calibrated and pooled by."""
    calibrations = [temperatures.pooled, *map(temperatures.of_member, range(members))]
    # As floats, because 2 and 2.0 are one temperature.
    numbers = [one if isinstance(one, tuple) else float(one) for one in calibrations]
    weights = [float(temperatures.weight_of(number)) for number in range(members)]
    return hashlib.sha256(json.dumps([numbers, weights]).encode()).hexdigest()


def require_fitted_to(ensemble: Ensemble, members: str | None, temperatures: str | None) -> None:
    """Raise a ValueError unless an ensemble has the digests of a cascade; None is not compared."""
    if members is not None and members != ensemble.digest:
        raise InvalidValueError(
            f"this cascade was fitted to members with the digest {members[:16]}, got an ensemble "
            f"with {ensemble.digest[:16]}; fit a cascade to this ensemble"
        )
    if temperatures is None:
        return
    found = temperatures_digest(ensemble.temperatures, len(ensemble))
    if temperatures != found:
        raise InvalidValueError(
            f"this cascade was fitted at temperatures with the digest {temperatures[:16]}, got an ensemble "
            f"with {found[:16]}, {ensemble.temperatures}; fit a cascade to this ensemble"
        )
