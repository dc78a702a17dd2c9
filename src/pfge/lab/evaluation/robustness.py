"""Evaluate on corrupted and unknown inputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from pfge.calibration import CalibrateBy
from pfge.ensemble import Ensemble
from pfge.errors import InvalidValueError
from pfge.lab.data import DataError, DataPart, Splits, evaluation_batches, load_data, take
from pfge.lab.evaluation.corruptions import CORRUPTIONS, STRENGTHS, corrupted, require_corruption
from pfge.lab.evaluation.evaluate import PooledMembers, compare_in_chunks, evaluate_on, predict
from pfge.lab.run.results import CorruptedInputs, EnsembleEvaluation, Separation, UnknownInputs
from pfge.lab.session import Session
from pfge.lab.user_functions import in_one_line, is_out_of_memory
from pfge.metrics.uncertainty import ClassDiversity, predictive_entropy


def ood_scores(pooled: PooledMembers) -> dict[str, Tensor]:
    """Return three scores [N] that are high where an input looks unknown; entropies are in nats.

    `max_probability` is one minus the largest pooled probability, `entropy` that of the pooled
    probabilities, and `mutual_information` how much of it comes from members that disagree,
    0 for a single member.
    """
    if not isinstance(pooled.diversity, ClassDiversity):
        raise InvalidValueError(
            "detecting unknown inputs needs class probabilities, which this task does not predict; use a "
            "task of classes or labels"
        )
    probabilities = pooled.predictions
    return {
        "max_probability": 1 - probabilities.amax(dim=1),
        "entropy": predictive_entropy(probabilities),
        "mutual_information": pooled.diversity.mutual_information(pooled.uncalibrated),
    }


def ood_metrics(known: Tensor, unknown: Tensor) -> dict[str, float]:
    """Return how well scores separate unknown inputs, which should have higher ones, from known ones.

    `auroc` is the probability that an unknown input has a higher score than a known one, ties
    counting half. `aupr` is the average precision with the unknown inputs as the positive class, so
    without any skill it is their share. `fpr_at_95` is the share of known inputs whose score
    is at or above the highest threshold that at least 95 % of the unknown ones reach.

    Args:
        known: The scores of inputs of the kinds that the ensemble was trained for, [N].
        unknown: The scores of other inputs, [M].
    """
    for name, scores in (("known", known), ("unknown", unknown)):
        _require_scores(name, scores)
    known, unknown = known.double().cpu(), unknown.double().cpu()
    both = torch.cat((known, unknown)).numpy()
    is_unknown = [False] * len(known) + [True] * len(unknown)
    # Rounded up in integer arithmetic, because 0.95 is not exact as a float.
    caught = -(-19 * len(unknown) // 20)
    threshold = unknown.sort(descending=True).values[caught - 1]
    return {
        "auroc": float(roc_auc_score(is_unknown, both)),
        "aupr": float(average_precision_score(is_unknown, both)),
        "fpr_at_95": (known >= threshold).double().mean().item(),
    }


def _require_scores(name: str, scores: Tensor) -> None:
    if scores.ndim != 1 or not len(scores):
        raise InvalidValueError(
            f"{name} scores must be a tensor [N] of at least one, got shape {list(scores.shape)}"
        )
    if bool(scores.isnan().any()):
        raise InvalidValueError(
            f"{name} scores must be numbers, got {int(scores.isnan().sum())} NaN of {len(scores)}; "
            "check the model's outputs"
        )


def assess(
    session: Session,
    ensemble: Ensemble,
    *,
    ood: Sequence[str] = (),
    corruptions: Sequence[str] = (),
    against: Ensemble | None = None,
    seed: int = 0,
) -> EnsembleEvaluation:
    """Return an ensemble's metrics, on test data, on unknown inputs and on corrupted ones.

    Args:
        session: The data, the model and the hardware.
        ensemble: The ensemble to measure.
        ood: Names of data sets whose inputs are of unknown kinds.
        corruptions: Names of corruptions, each at five strengths; "all" is every one.
        against: Another ensemble, such as the one that this was compressed from, to tell how far they differ.
        seed: Decides random corruptions.
    """
    names = [*CORRUPTIONS] if "all" in corruptions else [*corruptions]
    for name in names:
        require_corruption(name, STRENGTHS[0])
    if names:
        session.splits.normalization_for("corrupting inputs")
    if ood:
        session.require_one_class("telling unknown inputs apart")
    # Data that the model cannot take is refused before the test set is measured.
    unknown = {name: _score_unknown(session, ensemble, name) for name in ood}
    test = session.splits.test
    known = None if session.has_positions else _pool(session, ensemble, test, "test")
    if known is None:
        found = evaluate_on(session, ensemble, test, "test").pooled
        scores, metrics = found.scores, found.metrics
    else:
        scores = session.task.score(known.predictions, test.labels.cpu())
        metrics = session.task.summarize(scores) | known.differences()
    unlike = {} if against is None else _differences(session, ensemble, known, against)
    return EnsembleEvaluation(
        task=session.task,
        method=ensemble.method,
        model=ensemble.model,
        members=len(ensemble),
        bytes=ensemble.nbytes,
        temperature=ensemble.temperatures.pooled,
        member_temperatures=ensemble.temperatures.members,
        member_weights=ensemble.temperatures.weights,
        data=session.experiment.data.name,
        images=len(test),
        test=metrics | unlike,
        reliability=scores.reliability().to_dict() if hasattr(scores, "reliability") else {},
        ood={name: _tell_apart(ood_scores(known), scores) for name, scores in unknown.items() if known},
        corruptions={
            name: [_corrupt(session, ensemble, name, strength, seed) for strength in STRENGTHS]
            for name in names
        },
    )


def calibrate(session: Session, ensemble: Ensemble, how: CalibrateBy) -> Ensemble:
    """Return the ensemble with what was fitted on validation data."""
    data = session.validation_for("calibrating")
    return ensemble.calibrated(session.in_batches(data), by=how)


def _pool(session: Session, ensemble: Ensemble, data: DataPart, name: str) -> PooledMembers:
    pooled = PooledMembers(session.task, ensemble.temperatures)
    for member in predict(session, ensemble, data, name):
        pooled.add(member)
    return pooled


def _differences(
    session: Session, ensemble: Ensemble, known: PooledMembers | None, against: Ensemble
) -> dict[str, float]:
    """Return how far an ensemble is from another on test data, and the main metrics of the other.

    Args:
        session: The data, the model and the hardware.
        ensemble: The ensemble to compare.
        known: Its pooled predictions; None where they are too large to keep.
        against: The other ensemble.
    """
    task, test = session.task, session.splits.test
    if known is None:
        _, scores, kl = compare_in_chunks(ensemble, against, session.in_batches(test))
    else:
        other = _pool(session, against, test, "test, the other ensemble").predictions
        scores = task.score(other, test.labels.cpu())
        kl = task.divergence(other, known.predictions)
    compared = {m.name: m.compute(scores) for m in task.metrics if m.is_main and m.score}
    return {"kl_from_other": kl, **{f"{name}_of_other": value for name, value in compared.items()}}


def _load_unknown(session: Session, name: str) -> DataPart:
    settings = session.experiment.data
    ours = _shape(session.splits)
    splits = load_data(
        name,
        root=settings.root_folder,
        download=settings.download,
        verify=settings.verify,
        image_size=ours[1] if session.splits.normalization else None,
        workers=settings.workers,
    )
    theirs = _shape(splits)
    if ours != theirs:
        raise DataError(
            f"inputs of unknown kinds must have the shape of {settings.name}'s, {ours}, got {theirs} of "
            f"{name}; resize them first, or choose another data set"
        )
    return take(splits.test, min(settings.test_images, len(splits.test)), 0, part="unknown data")


def _score_unknown(session: Session, ensemble: Ensemble, name: str) -> dict[str, Tensor]:
    """Return the scores of a data set of unknown inputs, which the user's model may not be able to take."""
    data = _load_unknown(session, name)
    try:
        return ood_scores(_pool(session, ensemble, data, name))
    except (ValueError, OSError):
        raise  # these say what to do
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise DataError(
            f"the model of {session.experiment.data.name} cannot predict inputs of {name}: "
            f"{in_one_line(error)}; choose another data set"
        ) from error


def _tell_apart(known: dict[str, Tensor], unknown: dict[str, Tensor]) -> UnknownInputs:
    found = {score: Separation(**ood_metrics(known[score], unknown[score])) for score in known}
    return UnknownInputs(len(unknown["entropy"]), found)


def _corrupt(session: Session, ensemble: Ensemble, name: str, strength: int, seed: int) -> CorruptedInputs:
    data = corrupted(session.splits.test, name, strength, seed)
    found = evaluate_on(session, ensemble, data, f"{name} {strength}")
    return CorruptedInputs(strength, found.pooled.metrics)


def _shape(splits: Splits) -> Any:
    inputs, _ = next(iter(evaluation_batches(splits.test, splits.normalization, batch_size=1)))
    return _shape_of(inputs)


def _shape_of(inputs: Any) -> Any:
    """Return the shape of a tensor; for several tensors, whose lengths may vary, their names or number."""
    if isinstance(inputs, Mapping):
        return sorted(inputs)
    if isinstance(inputs, Tensor):
        return list(inputs.shape[1:])
    return f"{len(inputs)} tensors"
