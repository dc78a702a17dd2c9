"""Measure an ensemble on a data set: pooled, each member alone, and as it grows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pfge.calibration import fit_temperature, log_probabilities
from pfge.ensemble import Ensemble
from pfge.lab.data import Images
from pfge.lab.engine import Engine
from pfge.lab.evaluation.pool import Pool
from pfge.metrics.scores import Scores, score_examples
from pfge.tasks import Classification


def measure(probabilities: Tensor, targets: Tensor) -> dict[str, float]:
    """Return every metric of one set of predictions."""
    return summarize(score_examples(probabilities, targets))


def summarize(scores: Scores) -> dict[str, float]:
    """Return every metric of scored examples."""
    return {metric.name: metric.compute(scores) for metric in Classification.metrics}


@dataclass(frozen=True)
class Evaluation:
    """What was found on one part of the data."""

    targets: Tensor
    pooled: Pool
    last: Pool | None
    members: list[dict[str, float]]
    growing: list[dict[str, float]]
    member_temperatures: list[float]


def predict(
    ensemble: Ensemble, data: Images, in_batches: Callable[[Images], Iterable[Any]], engine: Engine
) -> Iterator[Tensor]:
    """Yield each member's probabilities over a data set, [N, C].

    Every process predicts its part of the data; all get the whole.

    Args:
        ensemble: What predicts, on the engine's device.
        data: What it is asked about.
        in_batches: Returns batches of inputs, in order, to be read again and again.
        engine: Which processes take part.
    """
    number, count = engine.share
    chosen = torch.arange(number, len(data), count)
    source = in_batches(data if count == 1 else data.select(chosen))
    for part in ensemble.predict_each(source):
        whole = part.new_zeros(len(data), part.shape[1])
        whole[chosen] = part
        yield engine.sum_over_processes(whole).cpu()


def evaluate(
    ensemble: Ensemble,
    predictions: Iterable[Tensor],
    targets: Tensor,
    *,
    last: int | None = None,
    member_temperatures: Sequence[float] | None = None,
    fit_temperatures: bool = False,
) -> Evaluation:
    """Return what all members pooled, the last few pooled, each, and the first 1, 2, ... are worth.

    Beyond the pooled predictions one member's are in memory, whatever the number of members.

    Args:
        ensemble: Whose members predicted.
        predictions: Each member's probabilities.
        targets: The true class of each example.
        last: How many of the last members are also pooled by themselves.
        member_temperatures: Of each member, for the pool at temperatures; 1 if None.
        fit_temperatures: Find them on these predictions instead.
    """
    pooled, pooled_last = Pool(ensemble.temperatures.pooled), Pool()
    temperatures = list(member_temperatures or [])
    members, growing = [], []
    for index, member in enumerate(predictions, 1):
        if len(temperatures) < index:
            temperatures.append(_fit(member, targets) if fit_temperatures else 1.0)
        pooled.add(member, temperatures[index - 1])
        if last and index > len(ensemble) - last:
            pooled_last.add(member, temperatures[index - 1])
        members.append(measure(member, targets))
        growing.append(measure(pooled.mean, targets))
    return Evaluation(targets, pooled, pooled_last if last else None, members, growing, temperatures)


def _fit(probabilities: Tensor, targets: Tensor) -> float:
    return fit_temperature(log_probabilities(probabilities), targets).value
