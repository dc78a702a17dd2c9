"""Turn collected members into a saved ensemble and a line of results."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from pfge.collectors import Collector, FolderStore
from pfge.ensemble import Ensemble
from pfge.lab.evaluation.evaluate import Evaluation, PooledScores, evaluate_on
from pfge.lab.run.results import AtMemberTemperatures, AtTemperature, ComparisonRow, append_row, require_rows
from pfge.lab.session import Session
from pfge.methods import TrainingPlan, is_starred, known_rows, starred
from pfge.metrics.scores import ExampleScores
from pfge.storage.files import make_folder, write_recorded
from pfge.tasks import Task

OfMembers = Mapping[str, list[dict[str, float]]]
"""For each part of the data, the metrics of each member or of the first few pooled."""


@dataclass(frozen=True)
class _Measured:
    metrics: Mapping[str, Mapping[str, float]]
    calibrated: AtTemperature | None = None
    calibrated_members: AtMemberTemperatures | None = None


def save_collected(
    session: Session, seed: int, setting: TrainingPlan, row: str, collector: Collector, store: FolderStore
) -> None:
    """Save every member, or the last of a starred method, with fresh BatchNorm, unless they are saved.

    Args:
        session: The experiment.
        seed: Which of its seeds.
        setting: The training plan of all methods.
        row: The name of the row.
        collector: The collector, at the end of its path.
        store: The collector's store; it is empty if members are not made one by one.
    """
    if is_saved(session, seed, row):
        return
    raw = session.make_ensemble(collector.members(), method=str(collector), iterations=collector.iterations)
    if store.iterations and not is_starred(row):
        # The members were written as they were made: their folder only takes its final name.
        session.engine.wait_for_all()  # the folder is not moved before all have opened it
        session.engine.on_rank_zero(lambda: store.save(raw.record))
        return
    if is_starred(row):
        raw = raw.last(min(setting.members, len(raw)))
    if not store.iterations:
        raw = session.refresh_batch_norm(raw, seed, f"seed {seed}: BatchNorm of {row}")
    session.engine.on_rank_zero(lambda: raw.save(session.folder.ensemble(seed, row)))


def record_collected(session: Session, seed: int, setting: TrainingPlan, row: str) -> None:
    """Measure the saved members of a method that follows a path."""
    last = setting.members if starred(row) in known_rows() else None
    ensemble = saved_ensemble(session, seed, row)
    record_ensemble(session, seed, row, ensemble, iterations=setting.iterations, last=last)


def saved_ensemble(session: Session, seed: int, row: str) -> Ensemble:
    """Read the ensemble of a row, without temperatures that a user may have fitted and saved since."""
    return session.load_ensemble(session.folder.ensemble(seed, row)).uncalibrated()


def is_saved(session: Session, seed: int, method: str) -> bool:
    """Return whether the run folder has the ensemble of a method."""
    saved = session.folder.has_ensemble(seed, method)
    session.engine.wait_for_all()  # no process saves before all have checked
    return saved


def record_ensemble(
    session: Session,
    seed: int,
    method: str,
    ensemble: Ensemble,
    *,
    iterations: int = 0,
    trainings: int = 1,
    last: int | None = None,
) -> None:
    """Measure an ensemble and append its row, and the row of its last members if required.

    Args:
        session: The experiment.
        seed: Which of its seeds.
        method: The name of the row.
        ensemble: The ensemble to measure.
        iterations: Number of training iterations it cost beyond w0.
        trainings: Number of trainings from their own start, w0's included.
        last: How many of the last members have a row of their own.
    """
    last = min(last, len(ensemble)) if last else None
    found = _evaluate(session, seed, method, ensemble, last)
    if not session.engine.is_first:
        return

    def record(
        name: str, pools: Mapping[str, PooledScores], members: int, of_members: Mapping[str, OfMembers]
    ) -> None:
        measured, scores = _measure(session.task, found, pools, members)
        path = session.folder.scores(seed, name)
        make_folder(path.parent)
        write_recorded(path, scores)
        row = ComparisonRow(
            seed=seed,
            method=name,
            task=session.task,
            members=members,
            bytes=ensemble.nbytes * members // len(ensemble),
            bytes_of_one=session.bytes_of_one,
            iterations=iterations,
            trainings=trainings,
            member_iterations=ensemble.iterations[-members:],
            metrics=measured.metrics,
            calibrated=measured.calibrated,
            calibrated_members=measured.calibrated_members,
            each=of_members.get("each"),
            growing=of_members.get("growing"),
        )
        append_row(session.folder.results, row)

    # First, so that a crash between the two leaves the method to be measured again.
    if last and starred(method) not in _rows(session, seed):
        record(starred(method), {part: e.last for part, e in found.items() if e.last}, last, {})
    of_members = {
        "each": {part: e.members for part, e in found.items()},
        "growing": {part: e.growing for part, e in found.items()},
    }
    record(method, {part: e.pooled for part, e in found.items()}, len(ensemble), of_members)


def _rows(session: Session, seed: int) -> set[str]:
    rows = require_rows(session.folder.results, ComparisonRow, session.task)
    return {row.method for row in rows if row.seed == seed}


def _evaluate(
    session: Session, seed: int, method: str, ensemble: Ensemble, last: int | None
) -> dict[str, Evaluation]:
    """Return the results on each part of the data, all at the temperatures of validation data."""
    parts = session.splits.for_evaluation()
    found: dict[str, Evaluation] = {}
    for part in sorted(parts, key=lambda part: part != "validation"):
        found[part] = evaluate_on(
            session,
            ensemble,
            parts[part],
            f"seed {seed}: {method} on {part}",
            last=last,
            fit_temperatures=part == "validation",
            after=found.get("validation"),
        )
    return {part: found[part] for part in parts}


def _measure(
    task: Task, found: Mapping[str, Evaluation], pools: Mapping[str, PooledScores], members: int
) -> tuple[_Measured, dict[str, Tensor]]:
    """Return a row's metrics on each part, as predicted and at temperatures, and each example's scores."""
    metrics = {part: pooled.metrics for part, pooled in pools.items()}
    scores: dict[str, Tensor] = {}
    for part, pooled in pools.items():
        scores |= _by_name(pooled.scores, part)
    if "validation" not in pools:
        return _Measured(metrics), scores
    at_pooled, at_members = {}, {}
    for part, pooled in pools.items():
        calibrated = pooled.require_calibrated()
        scores |= _by_name(calibrated.scores, f"{part}.calibrated")
        at_pooled[part] = task.summarize(calibrated.scores)
        at_members[part] = task.summarize(calibrated.of_members)
    temperature = pools["validation"].require_calibrated().temperature
    temperatures = found["validation"].member_temperatures[-members:]
    measured = _Measured(
        metrics, AtTemperature(temperature, at_pooled), AtMemberTemperatures(temperatures, at_members)
    )
    return measured, scores


def _by_name(scores: ExampleScores, prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in scores.tensors.items()}
