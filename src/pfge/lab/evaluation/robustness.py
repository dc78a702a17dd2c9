"""Measure one saved ensemble: metrics, unknown inputs, corrupted inputs."""

from collections.abc import Sequence

from pfge.calibration import CalibrateBy
from pfge.ensemble import Ensemble
from pfge.lab.data import DataError, DataPart, Splits, evaluation_batches, load_data, take
from pfge.lab.evaluation.corrupted_images import corrupted
from pfge.lab.evaluation.corruptions import CORRUPTIONS, STRENGTHS, require_corruption
from pfge.lab.evaluation.evaluate import evaluate_on, predict
from pfge.lab.evaluation.in_chunks import compare_in_chunks
from pfge.lab.evaluation.ood import ood_metrics, ood_scores
from pfge.lab.evaluation.pooled_members import PooledMembers
from pfge.lab.run.results import CorruptedInputs, EnsembleEvaluation, Separation, UnknownInputs
from pfge.lab.session import Session
from pfge.metrics.example_scores import ExampleScores
from pfge.tasks import Task


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
        ensemble: What to measure.
        ood: Names of data sets whose inputs are of unknown kinds.
        corruptions: Names of corruptions, each at five strengths; "all" is every one.
        against: Another ensemble, such as the one that this was compressed from, to tell how far they differ.
        seed: Of the corruptions.
    """
    names = [*CORRUPTIONS] if "all" in corruptions else [*corruptions]
    for name in names:
        require_corruption(name, STRENGTHS[0])
    if names:
        session.splits.normalization_for("corrupting inputs")
    if ood:
        session.require_one_class("telling unknown inputs apart")
    unknown = {name: _load_unknown(session, name) for name in ood}  # errors before any long work
    test = session.splits.test
    if session.has_positions:
        found = evaluate_on(session, ensemble, test, "test").pooled
        scores, metrics = found.scores, found.metrics
        unlike = _differences_in_chunks(session, ensemble, against)
    else:
        known = _pool(session, ensemble, test, "test")
        scores = session.task.score(known.predictions, test.labels.cpu())
        metrics, unlike = _metrics(session, known, scores), _differences(session, known, against)
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
        ood={name: _tell_apart(session, ensemble, known, name, data) for name, data in unknown.items()},
        corruptions={
            name: [_corrupt(session, ensemble, name, strength, seed) for strength in STRENGTHS]
            for name in names
        },
    )


def calibrate(session: Session, ensemble: Ensemble, how: CalibrateBy) -> Ensemble:
    """Return the ensemble with what was fitted on validation data."""
    data = session.validation_for("calibrating")
    return ensemble.calibrated(session.in_batches(data), data.labels, by=how)


def _pool(session: Session, ensemble: Ensemble, data: DataPart, name: str) -> PooledMembers:
    pooled = PooledMembers(session.task, ensemble.temperatures)
    for member in predict(session, ensemble, data, name):
        pooled.add(member)
    return pooled


def _metrics(session: Session, pooled: PooledMembers, scores: ExampleScores) -> dict[str, float]:
    return session.task.summarize(scores) | pooled.differences()


def _differences(session: Session, pooled: PooledMembers, against: Ensemble | None) -> dict[str, float]:
    if against is None:
        return {}
    task, test = session.task, session.splits.test
    other = _pool(session, against, test, "test, the other ensemble").predictions
    scores = task.score(other, test.labels.cpu())
    return _of_other(task, scores, task.divergence(other, pooled.predictions))


def _differences_in_chunks(
    session: Session, ensemble: Ensemble, against: Ensemble | None
) -> dict[str, float]:
    if against is None:
        return {}
    _, scores, kl = compare_in_chunks(ensemble, against, session.in_batches(session.splits.test))
    return _of_other(session.task, scores, kl)


def _of_other(task: Task, scores: ExampleScores, kl: float) -> dict[str, float]:
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
            f"images of unknown kinds must have the shape of {settings.name}'s, {ours}, got {theirs} of "
            f"{name}; resize them first, or choose another data set"
        )
    return take(splits.test, min(settings.test_images, len(splits.test)), 0, part="unknown data")


def _tell_apart(
    session: Session, ensemble: Ensemble, known: PooledMembers, name: str, data: DataPart
) -> UnknownInputs:
    unknown = _pool(session, ensemble, data, name)
    of_known, of_unknown = ood_scores(known), ood_scores(unknown)
    found = {score: Separation(**ood_metrics(of_known[score], of_unknown[score])) for score in of_known}
    return UnknownInputs(len(data), found)


def _corrupt(session: Session, ensemble: Ensemble, name: str, strength: int, seed: int) -> CorruptedInputs:
    data = corrupted(session.splits.test, name, strength, seed)
    if session.has_positions:
        return CorruptedInputs(
            strength, evaluate_on(session, ensemble, data, f"{name} {strength}").pooled.metrics
        )
    pooled = _pool(session, ensemble, data, f"{name} {strength}")
    scores = session.task.score(pooled.predictions, data.labels.cpu())
    return CorruptedInputs(strength, _metrics(session, pooled, scores))


def _shape(splits: Splits) -> list[int]:
    inputs, _ = next(iter(evaluation_batches(splits.test, splits.normalization, batch_size=1)))
    return list(inputs.shape[1:])
