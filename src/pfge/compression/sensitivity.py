"""How much the error of each tensor matters to predictions, measured on data."""

from collections.abc import Iterable
from itertools import islice
from math import isfinite
from typing import Any

from pfge.compression.rate_distortion import SMALL, relative_error
from pfge.ensemble import Ensemble
from pfge.packed.encode import PackSettings, Shared, base_numbers, is_packed, pack_delta, pack_small
from pfge.weights import Weights

BATCHES = 1
_BITS = 2
_SETTINGS = PackSettings(8, None)
_SMALL_BITS = 4
_LEAST = 1e-12


def measure_sensitivity(ensemble: Ensemble, shared: Shared, validation: Iterable[Any]) -> dict[str, float]:
    """Return the divergence of predictions for an error of 1 in each tensor alone, and in all small ones.

    One member predicts the first batch with one tensor at a time in few bits and all others as they are.
    Errors are squares relative to those of the tensor, to which the divergence is proportional where both
    are small.

    Args:
        ensemble: The original.
        shared: What its members have in common.
        validation: Batches.
    """
    batches = list(islice(validation, BATCHES))
    one = ensemble.last(1).uncalibrated()
    member, count = ensemble.members[len(ensemble) - 1], len(ensemble)
    expected = one.predict_batches(batches)
    differing = [name for name in shared.means if name not in shared.identical]
    probes: dict[str, Weights] = {}
    for name in differing:
        base = base_numbers(shared.means[name], _SETTINGS.base_bits)
        tensor = member[name]
        delta = pack_delta(tensor, base, _BITS, _SETTINGS).numbers().view(base.shape)
        probes[name] = {name: (base + delta).to(tensor.dtype)}
    small = [name for name, tensor in member.items() if not is_packed(tensor)]
    if small:
        whole = list(ensemble.members)
        probes[SMALL] = {
            name: pack_small([other[name] for other in whole], _SMALL_BITS).member(count - 1)
            for name in small
        }
    found = {}
    for name, changed in probes.items():
        predictions = one.with_members([{**member, **changed}]).predict_batches(batches)
        error = sum(relative_error(tensor, member[key]) for key, tensor in changed.items())
        divergence = ensemble.task.divergence(expected, predictions)
        # Predictions that are not finite say that the tensor matters very much.
        found[name] = max(_LEAST, divergence if isfinite(divergence) else 1 / _LEAST) / max(_LEAST, error)
    return found
