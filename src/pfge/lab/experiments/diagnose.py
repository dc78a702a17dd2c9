"""Diagnose the geometry of an ensemble's members, on training and validation data only."""

import warnings
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from pfge.ensemble import Ensemble
from pfge.errors import InvalidValueError
from pfge.lab.data import DataPart, take
from pfge.lab.evaluation.evaluate import evaluate_on, predict
from pfge.lab.run.progress import Reporter
from pfge.lab.run.results import AdjacentMembers, Change, Diagnosis, Gains
from pfge.lab.session import Session, open_run
from pfge.lab.training.pretrain import read_w0
from pfge.methods import TrainingPlan, find_reference, schedule_of
from pfge.metrics.scores import Scores, score_examples
from pfge.metrics.uncertainty import disagreement
from pfge.prediction import MemberPool
from pfge.storage.ensemble_folder import MANIFEST
from pfge.storage.files import StorageError
from pfge.tasks import Task
from pfge.tasks.classification import require_classification
from pfge.weights import Weights, buffer_names, distance, interpolate, is_averaged

IMAGES = 2000
"""Number of training images for losses: enough to see a barrier, and quick."""


def diagnose(
    path: Path,
    reporter: Reporter,
    *,
    methods: Sequence[str] = (),
    overrides: Sequence[str] = (),
    trust_code: bool = False,
) -> list[Diagnosis]:
    """Diagnose the ensembles of a run, for every seed that has them.

    Args:
        path: The run folder.
        reporter: Shows progress.
        methods: Methods to diagnose; () means the reference.
        overrides: Settings that replace the run's, such as `data.root`.
        trust_code: Whether the run's own config may name functions and paths, as in `load_run_config`.
    """
    methods = methods or [find_reference().name]
    with open_run(path, reporter, overrides=overrides, trust_code=trust_code) as session:
        session.require_one_class("a diagnosis")
        wanted = [(seed, method) for seed in session.experiment.seeds for method in methods]
        there = [(s, m) for s, m in wanted if (session.folder.ensemble(s, m) / MANIFEST).exists()]
        if not there:
            raise StorageError(
                f"{path} has no finished ensemble of {', '.join(methods)} yet; run pfge compare --out {path} "
                "to its end"
            )
        return [_diagnose(session, seed, method) for seed, method in there]


def _diagnose(session: Session, seed: int, method: str) -> Diagnosis:
    ensemble = session.load_ensemble(session.folder.ensemble(seed, method)).uncalibrated()
    if len(ensemble) < 2:
        raise InvalidValueError(
            f"a diagnosis needs two members or more, but {method} of seed {seed} has {len(ensemble)}"
        )
    w0 = read_w0(session, seed)
    train = take(session.splits.train, min(IMAGES, len(session.splits.train)), seed, part="training data")
    held_out = session.splits.validation
    judged_on: Literal["validation", "training"] = "validation" if len(held_out) else "training"
    data = held_out if len(held_out) else train
    name = f"seed {seed}: {method}"
    losses = _losses(session, ensemble, train, f"{name}, members")
    middles = _middles(session, seed, ensemble, train, name)
    task, labels = session.task, data.labels.cpu()
    pool, errors, disagreements = MemberPool(task), [], []
    of_members: list[Scores] = []
    tempered: list[Tensor] = []
    previous: Tensor | None = None
    for predictions in predict(session, ensemble, data, f"{name}, {judged_on}"):
        pool.add(predictions)
        errors.append(share_of_errors(task, predictions, labels))
        of_members.append(score_examples(predictions, labels))
        if judged_on == "validation":
            tempered.append(log_loss_at_temperature(task, predictions, labels))
        if previous is not None:
            disagreements.append(disagreement((previous, predictions)))
        previous = predictions
    (of_w0,) = predict(session, session.make_ensemble([w0]), data, f"{name}, w0 on {judged_on}")
    parameters = _parameter_names(ensemble.build_model())
    pairs = []
    for first in range(len(ensemble) - 1):
        one, other = ({n: ensemble.members[i][n] for n in parameters} for i in (first, first + 1))
        ends = (losses[first] + losses[first + 1]) / 2
        pairs.append(
            AdjacentMembers(
                (first + 1, first + 2),
                distance(one, other) / _norm(one),
                _angle({n: w0[n] for n in parameters}, one, other),
                ends,
                middles[first] - ends,
                disagreements[first],
            )
        )
    setting = session.experiment.ensemble.setting(session.batches(seed, "ensembling").per_epoch)
    return Diagnosis(
        seed,
        method,
        pairs,
        errors,
        share_of_errors(task, pool.predictions, labels),
        judged_on,
        _stale_loss(session, ensemble, w0, train, name),
        _rates(setting, method, ensemble),
        setting.low,
        _gains(
            score_examples(pool.predictions, labels),
            of_members,
            score_examples(of_w0, labels),
            tempered,
            *_losses(session, session.make_ensemble([w0]), train, f"{name}, w0"),
        ),
    )


def _gains(
    pooled: Scores,
    members: Sequence[Scores],
    w0: Scores,
    tempered: Sequence[Tensor],
    w0_training_loss: float,
) -> Gains:
    wrong = torch.stack([1 - scores.correct for scores in members]).mean(0)
    loss = torch.stack([scores.log_loss for scores in members]).mean(0)
    return Gains(
        pooled_error=_change(1 - pooled.correct, wrong),
        pooled_loss=_change(pooled.log_loss, loss),
        member_error=_change(wrong, 1 - w0.correct),
        member_loss=_change(loss, w0.log_loss),
        w0_error=(1 - w0.correct).mean().item(),
        w0_training_loss=w0_training_loss,
        tempered_loss=_change(torch.stack([*tempered]).mean(0), pooled.log_loss) if tempered else None,
    )


def _change(values: Tensor, others: Tensor) -> Change:
    differences = values.double() - others.double()
    error = differences.std().item() / sqrt(len(differences)) if len(differences) > 1 else 0.0
    return Change(differences.mean().item(), error)


def log_loss_at_temperature(task: Task, predictions: Tensor, labels: Tensor) -> Tensor:
    """Return the log loss of each example at a temperature fitted on the other half of the examples."""
    half = torch.arange(len(labels)) % 2 == 0
    found = score_examples(predictions, labels).log_loss.double()
    for fitted, used in ((half, ~half), (~half, half)):
        if used.any() and fitted.any():
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", UserWarning
                )  # of a fit that stays at 1, which is an answer here
                temperature = task.fit_calibration(predictions[fitted], labels[fitted])
            calibrated = task.calibrate(predictions[used], temperature)
            found[used] = score_examples(calibrated, labels[used]).log_loss.double()
    return found


def share_of_errors(task: Task, predictions: Tensor, targets: Tensor) -> float:
    """Return the share of examples whose most probable class is wrong."""
    require_classification(task, "a diagnosis")
    return (1 - score_examples(predictions, targets).correct).mean().item()


def _losses(session: Session, ensemble: Ensemble, data: DataPart, name: str) -> list[float]:
    return [member["nll"] for member in evaluate_on(session, ensemble, data, name).members]


def _middles(session: Session, seed: int, ensemble: Ensemble, data: DataPart, name: str) -> list[float]:
    """Return the training loss half-way between adjacent members, with fresh BatchNorm statistics."""
    members = ensemble.members
    points = [interpolate(members[i], members[i + 1], 0.5) for i in range(len(ensemble) - 1)]
    fresh = session.refresh_batch_norm(session.make_ensemble(points), seed, f"{name}, BatchNorm half-way")
    return _losses(session, fresh, data, f"{name}, half-way")


def _stale_loss(session: Session, ensemble: Ensemble, w0: Weights, data: DataPart, name: str) -> float | None:
    buffers = {n: w0[n] for n in buffer_names(ensemble.build_model())}
    if not any(map(is_averaged, buffers.values())):
        return None
    stale = session.make_ensemble([member | buffers for member in ensemble.members])
    losses = _losses(session, stale, data, f"{name}, BatchNorm of w0")
    return sum(losses) / len(losses)


def _rates(setting: TrainingPlan, method: str, ensemble: Ensemble) -> list[float | None]:
    schedule = schedule_of(method, setting)
    return [None if iteration is None else schedule(iteration) for iteration in ensemble.iterations]


def _parameter_names(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if is_averaged(parameter)]


def _norm(weights: Weights) -> float:
    return distance(weights, {name: torch.zeros_like(tensor) for name, tensor in weights.items()})


def _angle(corner: Weights, one: Weights, other: Weights) -> float:
    def way(end: Weights) -> Tensor:
        return torch.cat([(end[name].double() - corner[name].double()).flatten() for name in corner])

    first, second = way(one), way(other)
    cosine = torch.nn.functional.cosine_similarity(first, second, dim=0).clamp(-1, 1)
    return float(torch.rad2deg(torch.arccos(cosine)))
