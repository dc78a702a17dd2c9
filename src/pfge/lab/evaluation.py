"""Measure an ensemble on a data set: pooled, each member alone, and as it grows."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pfge.ensemble import Ensemble
from pfge.lab.data import Images, Normalization, evaluation_batches
from pfge.lab.engine import Engine
from pfge.metrics import accuracy, brier_score, expected_calibration_error, negative_log_likelihood

METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "accuracy": accuracy,
    "nll": negative_log_likelihood,
    "brier": brier_score,
    "ece": expected_calibration_error,
}


def measure(probabilities: Tensor, targets: Tensor) -> dict[str, float]:
    """Return every metric of one set of predictions."""
    return {name: metric(probabilities, targets) for name, metric in METRICS.items()}


def evaluate(
    ensemble: Ensemble,
    data: Images,
    normalization: Normalization,
    engine: Engine,
    *,
    batch_size: int,
    last: int | None = None,
    workers: int = 0,
    channels_last: bool = False,
    on_member: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Return the metrics of all members pooled, of the last few pooled, of each, and of the first 1, 2, ...

    Every process predicts its part of the data; all get the whole result. No more than four sets of
    predictions are in memory, whatever the number of members.

    Args:
        ensemble: What to measure, on the engine's device.
        data: On what.
        normalization: Turns pixels into inputs.
        engine: Which processes take part.
        batch_size: Images in a batch.
        last: How many of the last members are also pooled by themselves.
        workers: Processes that read streamed images.
        channels_last: Whether inputs have the channels-last memory format.
        on_member: Called with the number of members done.
    """
    number, count = engine.share
    chosen = torch.arange(number, len(data), count)
    source = evaluation_batches(
        data if count == 1 else data.select(chosen),
        normalization,
        batch_size=batch_size,
        workers=workers,
        device=engine.device,
        channels_last=channels_last,
    )
    targets = data.labels.cpu()
    total, total_of_last = torch.zeros(()), torch.zeros(())
    members, growing = [], []
    for index, part in enumerate(ensemble.predict_each(source), 1):
        whole = part.new_zeros(len(data), part.shape[1])
        whole[chosen] = part
        member = engine.sum_over_processes(whole).cpu()
        total = total + member
        if last and index > len(ensemble) - last:
            total_of_last = total_of_last + member
        members.append(measure(member, targets))
        growing.append(measure(total / index, targets))
        if on_member is not None:
            on_member(index)
    result: dict[str, Any] = {"pooled": growing[-1], "members": members, "growing": growing}
    if last:
        result["last"] = measure(total_of_last / last, targets)
    return result
