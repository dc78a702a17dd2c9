"""A comparison of every task: each number is what a plain loop over the saved members gives."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, jaccard_score
from torch import Tensor
from torch.distributions import Normal

from pfge.calibration import CalibrateBy
from pfge.lab.config.settings import ConfigError, Experiment
from pfge.lab.engine import Engine
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session, open_session
from pfge.reports.contents import report_figures, report_tables
from pfge.reports.page import make_page
from pfge.reports.run import Run
from pfge.storage.files import StorageError
from pfge.weights import load_weights
from tests.lab import made_tasks
from tests.lab.tiny import outcome, run, tiny

COMMON = ("ensemble.methods=['FGE', 'PFGE']", "pretrain.epochs=10")
SETTINGS = {
    "numbers": (*COMMON, "data.name=tests.lab.made_tasks:numbers", "model.name=mlp", "pretrain.rate=0.01"),
    "labels": (*COMMON, "data.name=tests.lab.made_tasks:labels", "model.name=mlp"),
    "masks": (
        *COMMON,
        "data.name=tests.lab.made_tasks:masks",
        "model.name=tests.lab.made_tasks:pixel_net",
    ),
}
HEADS = {
    "numbers": ["RMSE", "NLL", "CRPS", "90% coverage %"],
    "labels": ["macro F1 %", "average precision %", "NLL", "ECE %"],
    "masks": ["accuracy %", "NLL", "ECE %", "mean IoU %"],
}


@pytest.fixture(scope="module", params=[*SETTINGS])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param) / "run"
    run(tiny(*SETTINGS[request.param]), folder)
    return request.param, folder


def open_finished(kind: str, folder: Path) -> Session:
    experiment: Experiment = tiny(*SETTINGS[kind])
    return Session.set_up(experiment, RunFolder(folder), Engine(experiment.engine), Reporter(quiet=True))


def outputs(session: Session) -> list[Tensor]:
    """Return what the model of each PFGE member returns for the test inputs, in float64."""
    members = session.load_ensemble(session.folder.ensemble(1, "PFGE")).members
    found = []
    for member in members:
        model = session.build_model().eval()
        load_weights(model, member)
        with torch.no_grad():
            found.append(model(session.splits.test.inputs).double())  # type: ignore[union-attr]
    return found


def row(folder: Path, method: str = "PFGE") -> dict[str, Any]:
    (found,) = [row for row in Run(folder).results if row.method == method]
    return dict(found.metrics["test"])


def expected_numbers(members: list[Tensor], targets: Tensor) -> dict[str, float]:
    means, variances = (torch.stack(parts) for parts in zip(*(_split(m) for m in members), strict=True))
    mean = means.mean(0)
    pooled = Normal(mean, (variances.mean(0) + (means - mean).square().mean(0)).sqrt())
    return {
        "rmse": math.sqrt((mean - targets).square().mean()),
        "nll": -pooled.log_prob(targets.double()).mean().item(),
        "coverage": ((pooled.cdf(targets.double()) - 0.5).abs() <= 0.45).double().mean().item(),
    }


def _split(outputs: Tensor) -> tuple[Tensor, Tensor]:
    return outputs[:, 0], outputs[:, 1].exp()


def expected_labels(members: list[Tensor], targets: Tensor) -> dict[str, float]:
    pooled = torch.stack([member.sigmoid() for member in members]).mean(0)
    losses = torch.nn.functional.binary_cross_entropy(pooled, targets.double())
    return {
        "macro_f1": f1_score(targets, pooled >= 0.5, average="macro"),
        "average_precision": average_precision_score(targets, pooled, average="macro"),
        "nll": losses.item(),
    }


def expected_masks(members: list[Tensor], targets: Tensor) -> dict[str, float]:
    pooled = torch.stack([member.softmax(1) for member in members]).mean(0)
    valid = targets != made_tasks.IGNORED
    rows, classes = pooled.movedim(1, -1)[valid], targets[valid]
    return {
        "accuracy": (rows.argmax(1) == classes).double().mean().item(),
        "nll": -rows.gather(1, classes[:, None]).log().mean().item(),
        "mean_iou": jaccard_score(classes, rows.argmax(1), average="macro"),
    }


EXPECTED = {"numbers": expected_numbers, "labels": expected_labels, "masks": expected_masks}


def test_a_row_has_the_numbers_of_a_plain_loop_over_members(finished: tuple[str, Path]) -> None:
    kind, folder = finished
    session = open_finished(kind, folder)
    found, expected = row(folder), EXPECTED[kind](outputs(session), session.splits.test.labels)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_a_calibrated_row_is_what_the_calibrated_ensemble_predicts(finished: tuple[str, Path]) -> None:
    kind, folder = finished
    session = open_finished(kind, folder)
    task, validation, test = session.task, session.splits.validation, session.splits.test
    (stated,) = [row for row in Run(folder).results if row.method == "PFGE"]
    ensemble = session.load_ensemble(session.folder.ensemble(1, "PFGE"))
    kinds: tuple[tuple[CalibrateBy, Any], ...] = (
        ("pooled", stated.calibrated),
        ("members", stated.calibrated_members),
    )
    for by, found in kinds:
        calibrated = ensemble.calibrated(session.in_batches(validation), by=by)
        expected = task.summarize(
            task.score(calibrated.predict_batches(session.in_batches(test)), test.labels)
        )
        assert found is not None
        assert dict(found.metrics["test"]) == pytest.approx(expected, abs=1e-5)


def test_tables_figures_and_the_page_have_the_metrics_of_the_task(finished: tuple[str, Path]) -> None:
    kind, folder = finished
    shown = Run(folder)
    methods = report_tables(shown)[0]
    assert [column.head for column in methods.columns][4:-1] == HEADS[kind]
    assert {table.key for table in report_tables(shown)} == {"methods", "calibration", "differences"}
    assert "reliability" not in {figure.name for figure in report_figures(shown)}
    assert "NLL" in make_page([shown])


def test_a_run_that_is_measured_again_is_the_same(finished: tuple[str, Path]) -> None:
    kind, folder = finished
    before = outcome(folder)
    (folder / "results.jsonl").unlink()
    run(tiny(*SETTINGS[kind]), folder)
    assert outcome(folder) == before


def test_the_config_has_precedence_over_the_data_set(tmp_path: Path) -> None:
    fixed = tiny(*SETTINGS["numbers"], "task.name=regression")
    with open_session(fixed, tmp_path / "run", Reporter(quiet=True)) as session:
        assert (session.task, session.outputs) == (made_tasks.Regression(noise="fixed"), 1)


@pytest.mark.parametrize(
    ("kind", "task", "expected"),
    [
        ("numbers", "classification", "must fit the task Classification"),
        ("numbers", "multilabel", "must fit the task MultiLabel"),
        ("masks", "multilabel", "must fit the task MultiLabel"),
    ],
)
def test_a_task_that_does_not_fit_is_refused_before_training(
    tmp_path: Path, kind: str, task: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        run(tiny(*SETTINGS[kind], f"task.name={task}"), tmp_path / "run")


@pytest.mark.parametrize("finished", ["numbers"], indirect=True)
def test_an_ensemble_of_another_task_is_refused(finished: tuple[str, Path]) -> None:
    kind, folder = finished
    fixed = tiny(*SETTINGS[kind], "task.name=regression")
    session = Session.set_up(fixed, RunFolder(folder), Engine(fixed.engine), Reporter(quiet=True))
    message = r"has the task Regression\(noise='predicted'\), and the .* make it again by pfge pool --config"
    with pytest.raises(StorageError, match=message):
        session.load_ensemble(folder / "seed-1" / "ensembles" / "PFGE")
