"""Rows of results: every number is the task's, of the predictions that users get."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pfge import Cascade, Ensemble
from pfge.calibration import CalibrateBy
from pfge.lab.data import DataPart
from pfge.lab.engine import Engine
from pfge.lab.evaluation.evaluate import evaluate_on
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session
from pfge.metrics.scores import Scores
from pfge.storage.files import read_tensors
from pfge.tasks import Classification, Metric
from tests.lab.tiny import LENGTH, PRETRAINING, run, tiny

EXPERIMENT = tiny("data.validation_from_test=true", "ensemble.methods=['FGE']")
PARTS = ("test", "validation")
Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Results]:
    """A run with validation data, and its rows: of w0, of FGE and of FGE's last members."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    results = run(EXPERIMENT, folder)
    engine = Engine(EXPERIMENT.engine)
    return Session.set_up(EXPERIMENT, RunFolder(folder), engine, Reporter(quiet=True)), results


def row(results: Results, method: str) -> dict[str, Any]:
    (found,) = [result for result in results if result["method"] == method]
    return found


def load(session: Session, method: str) -> Ensemble:
    ensemble = session.load_ensemble(session.folder.ensemble(1, method.rstrip("*")))
    return ensemble.last(4) if method.endswith("*") else ensemble


def parts(session: Session) -> dict[str, DataPart]:
    return session.splits.for_evaluation()


@pytest.mark.parametrize("method", ["FGE", "FGE*"])
def test_the_numbers_of_a_row_are_those_of_what_the_ensemble_predicts(
    finished: tuple[Session, Results], method: str
) -> None:
    session, results = finished
    ensemble, task = load(session, method), Classification()
    for part, data in parts(session).items():
        predicted = ensemble.predict_batches(session.in_batches(data))
        found = task.summarize(task.score(predicted, data.labels))
        stated = {name: row(results, method)[part][name] for name in found}
        assert stated == pytest.approx(found, abs=1e-6)


@pytest.mark.parametrize("each", [False, True])
def test_the_numbers_at_temperatures_are_those_of_the_calibrated_ensemble(
    finished: tuple[Session, Results], each: bool
) -> None:
    session, results = finished
    task, validation = Classification(), session.splits.validation
    by: CalibrateBy = "members" if each else "pooled"
    calibrated = load(session, "FGE").calibrated(session.in_batches(validation), by=by)
    stated = row(results, "FGE")["calibrated_members" if each else "calibrated"]
    if each:
        assert tuple(stated["temperatures"]) == calibrated.temperatures.members
    else:
        assert stated["temperature"] == calibrated.temperatures.pooled
    for part, data in parts(session).items():
        predicted = calibrated.predict_batches(session.in_batches(data))
        assert stated[part] == pytest.approx(task.summarize(task.score(predicted, data.labels)), abs=1e-6)


def test_the_scores_in_the_file_are_those_the_row_is_the_mean_of(finished: tuple[Session, Results]) -> None:
    session, results = finished
    scores = read_tensors(session.folder.scores(1, "FGE"))[0]
    for part in PARTS:
        assert scores[f"{part}.log_loss"].mean().item() == row(results, "FGE")[part]["nll"]
        calibrated = scores[f"{part}.calibrated.log_loss"].mean().item()
        assert calibrated == row(results, "FGE")["calibrated"][part]["nll"]


class FirstOnly:
    """A pool in which only the first member counts."""

    def __init__(self, first: Tensor | None = None):
        self.first = first

    def add(self, predictions: Tensor, weight: float = 1.0) -> None:  # noqa: ARG002
        self.first = predictions if self.first is None else self.first

    def take(self, index: Tensor) -> "FirstOnly":
        return FirstOnly(self.result()[index])

    def result(self) -> Tensor:
        assert self.first is not None
        return self.first


def test_an_ensemble_a_cascade_and_the_lab_pool_by_the_tasks_pool(
    finished: tuple[Session, Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = finished
    ensemble, data = load(session, "FGE"), session.splits.test
    first = next(ensemble.predict_each(session.in_batches(data)))
    monkeypatch.setattr(Classification, "pool", lambda _: FirstOnly())
    assert torch.equal(ensemble.predict_batches(session.in_batches(data)), first)
    cascade = Cascade(tuple(range(8)), 2.0)
    assert torch.equal(cascade.predict_batches(ensemble, session.in_batches(data)).probabilities, first)
    assert torch.equal(cascade.replay(first.expand(8, -1, -1)).probabilities, first)
    scores = evaluate_on(session, ensemble, data, "test").pooled.scores.tensors
    of_first = ensemble.task.score(first, data.labels).tensors
    assert all(torch.equal(scores[name], of_first[name]) for name in of_first)


def test_a_metric_that_a_task_is_given_is_in_every_part_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def least_confident(scores: Scores) -> float:
        return scores.confidence.min().item()

    made_up = Metric("least_confident", "least confident", "higher", least_confident)
    monkeypatch.setattr(Classification, "metrics", (*Classification.metrics, made_up))
    results = run(EXPERIMENT, tmp_path)
    found = row(results, "FGE")
    scores = read_tensors(RunFolder(tmp_path).scores(1, "FGE"))[0]
    for part in PARTS:
        assert found[part]["least_confident"] == scores[f"{part}.confidence"].min().item()
        calibrated = scores[f"{part}.calibrated.confidence"].min().item()
        assert found["calibrated"][part]["least_confident"] == calibrated
        assert found["calibrated_members"][part]["least_confident"] > 0
        for members in (found["each"][part], found["growing"][part]):
            assert all(member["least_confident"] > 0 for member in members)
        assert row(results, "w0")[part]["least_confident"] > 0
        assert row(results, "FGE*")[part]["least_confident"] > 0


def test_training_minimizes_the_loss_of_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[float] = []
    loss = Classification.loss

    def note(task: Classification, outputs: Tensor, targets: Tensor, **options: Any) -> Tensor:
        losses.append(loss(task, outputs, targets, **options).item())
        return 0 * outputs.sum()  # leaves the weights where weight decay takes them

    monkeypatch.setattr(Classification, "loss", note)
    run(tiny("ensemble.methods=['FGE']", "ensemble.weight_decay=0"), tmp_path)
    assert len(losses) == PRETRAINING + LENGTH
    w0 = read_tensors(tmp_path / "seed-1" / "w0.safetensors")[0]
    member = Ensemble.load(tmp_path / "seed-1" / "ensembles" / "FGE", torch.nn.Identity).members[-1]
    assert torch.equal(member["0.weight"], w0["0.weight"])
