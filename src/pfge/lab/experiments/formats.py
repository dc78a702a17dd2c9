"""Measure the size and quality of a run's ensembles in every storage format."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from pfge.cascade import Cascade, fit_to_answers
from pfge.compression.compress import StorageFormat, formats_of
from pfge.ensemble import Ensemble
from pfge.lab.data import DataPart
from pfge.lab.evaluation.evaluate import compare_in_chunks, predict
from pfge.lab.run.progress import Reporter
from pfge.lab.run.results import (
    ComparisonRow,
    FormatRow,
    append_row,
    expected_rows,
    put_in_order,
    require_rows,
)
from pfge.lab.session import Session, open_run
from pfge.lab.training.pretrain import read_w0
from pfge.methods import METHODS, START
from pfge.metrics.scores import ExampleScores
from pfge.prediction import MemberPool
from pfge.storage.files import StorageError
from pfge.tasks import Classification, Task

MAX_ACCURACY_LOSS = 0.001
"""Largest accuracy that a cascade may lose on validation data: 0.1 points."""


def measure_formats(
    path: Path, reporter: Reporter, *, overrides: Sequence[str] = (), trust_code: bool = False
) -> list[FormatRow]:
    """Measure every ensemble of a finished comparison in every format, and return all results.

    Each result is a line in the run folder and is not computed again. One process does all the work.
    Temperatures are left out, so float32 members have the numbers of the comparison. Cascades need validation
    data, which decides when they stop.

    Args:
        path: The run folder.
        reporter: Shows progress.
        overrides: Settings that replace the run's, such as `data.root`.
        trust_code: Whether the run's own config may name functions and paths, as in `load_run_config`.
    """
    with open_run(path, reporter, overrides=overrides, trust_code=trust_code) as session:
        # A file that cannot be continued is refused before the long work starts.
        require_rows(session.folder.formats, FormatRow, session.task)
        if not _has_classes(session):
            reporter.say(f"no cascades: they stop at a confident class, and the task is {session.task}")
        elif not len(session.splits.validation):
            reporter.say(
                "no cascades: their thresholds are fitted on validation data, and this run has none "
                "(data.validation, or data.validation_from_test)"
            )
        # All are checked before the long work starts.
        ensembles = {seed: dict(_ensembles(session, seed)) for seed in session.experiment.seeds}
        count = sum(map(len, ensembles.values()))
        reporter.say(f"{path}: measures {count} ensembles in each storage format")
        for seed, of_seed in ensembles.items():
            # Small ensembles first, so that most results exist before the largest ensemble is measured.
            for method, ensemble in sorted(of_seed.items(), key=lambda item: len(item[1])):
                _measure_ensemble(session, seed, method, ensemble)
        put_in_order(session.folder.formats, FormatRow, ())
        return require_rows(session.folder.formats, FormatRow, session.task)


def _ensembles(session: Session, seed: int) -> Iterator[tuple[str, Ensemble]]:
    """Yield each method of a finished seed and its ensemble without temperatures."""
    never_saved = {method.name for method in METHODS.values() if not method.saved}
    members = {
        row.method: row.members
        for row in require_rows(session.folder.results, ComparisonRow, session.task)
        if row.seed == seed and row.method not in never_saved
    }
    expected = expected_rows(session.experiment.ensemble.methods)
    if missing := sorted(expected - members.keys() - never_saved):
        raise StorageError(
            f"{session.folder.path} has no finished {missing[0]} for seed {seed} yet; "
            f"run pfge compare --out {session.folder.path} to its end"
        )
    for method, count in members.items():
        yield method, _open(session, seed, method).last(count).uncalibrated()


def _open(session: Session, seed: int, method: str) -> Ensemble:
    if method == START:
        return session.make_ensemble([read_w0(session, seed)], method=START, iterations=[0])
    return session.load_ensemble(session.folder.ensemble(seed, method))


def _measure_ensemble(session: Session, seed: int, method: str, ensemble: Ensemble) -> None:
    measured = {row.key for row in require_rows(session.folder.formats, FormatRow, session.task)}
    cascades = len(ensemble) > 1 and len(session.splits.validation) and _has_classes(session)
    kinds = (False, True) if cascades else (False,)
    formats = formats_of(len(ensemble))
    missing = {
        stored_as: [kind for kind in kinds if (seed, method, stored_as.name, kind) not in measured]
        for stored_as in formats
    }
    if not any(missing.values()):
        return
    expected: Tensor | None = None
    labels = session.splits.test.labels.cpu()
    for stored_as in formats:
        if (expected is not None or session.has_positions) and not missing[stored_as]:
            continue
        stored = stored_as.store(ensemble)
        name = f"seed {seed}: {method}, {stored_as.name}"
        if session.has_positions:
            scores, _, kl = compare_in_chunks(stored, ensemble, session.in_batches(session.splits.test))
            asked = torch.full((len(labels),), len(stored))
            append_row(
                session.folder.formats,
                _row(session, seed, method, stored_as, stored, None, asked, kl, scores),
            )
            continue
        answers = _answers(session, stored, session.splits.test, f"{name}, test")
        if expected is None:  # members as they are come first
            expected = MemberPool(session.task).add_all(answers).predictions
        for kind in missing[stored_as]:
            cascade = _fit(session, stored, f"{name}, validation") if kind else None
            predictions, asked = _predict(session.task, answers, cascade)
            kl = session.task.divergence(expected, predictions)
            scores = session.task.score(predictions, labels)
            append_row(
                session.folder.formats,
                _row(session, seed, method, stored_as, stored, cascade, asked, kl, scores),
            )


def _has_classes(session: Session) -> bool:
    return isinstance(session.task, Classification) and not session.has_positions


def _row(
    session: Session,
    seed: int,
    method: str,
    stored_as: StorageFormat,
    stored: Ensemble,
    cascade: Cascade | None,
    asked: Tensor,
    kl: float,
    scores: ExampleScores,
) -> FormatRow:
    return FormatRow(
        seed=seed,
        method=method,
        task=session.task,
        format=stored_as.name,
        cascade=cascade is not None,
        members=len(stored),
        bytes=stored.nbytes,
        file_bytes=stored.file_bytes() + (cascade.file_bytes() if cascade else 0),
        bytes_of_one=session.bytes_of_one,
        mean_members=asked.double().mean().item(),
        most_members=int(asked.max()),
        kl=kl,
        metrics={"test": session.task.summarize(scores)},
    )


def _predict(task: Task, answers: Tensor, cascade: Cascade | None) -> tuple[Tensor, Tensor]:
    """Return the pooled predictions, and how many members were evaluated for each example."""
    if cascade is None:
        pooled = MemberPool(task).add_all(answers).predictions
        return pooled, torch.full((answers.shape[1],), len(answers))
    found = cascade.replay(answers)
    return found.probabilities, found.evaluated


def _answers(session: Session, ensemble: Ensemble, data: DataPart, name: str) -> Tensor:
    """Return all members' probabilities, [K, N, C]; cascades are computed from them without new passes."""
    return torch.stack(list(predict(session, ensemble, data, name)))


def _fit(session: Session, ensemble: Ensemble, name: str) -> Cascade:
    data = session.splits.validation
    answers = _answers(session, ensemble, data, name)
    return fit_to_answers(answers, data.labels.cpu(), max_accuracy_loss=MAX_ACCURACY_LOSS)
