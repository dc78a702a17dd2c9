"""The study of pooling: what it measures of a run, and the page that is made of it."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from pfge.lab.run.progress import Reporter
from pfge.lab.session import open_run
from studies import cifar10, pooling
from studies.pooling import MEASURED, Pooled, Study, measure, results
from studies.records import Part
from studies.tables import write_results
from tests.lab.tiny import run, tiny

METHODS = ("SWA", "FGE", "FGE*", "TTA")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    pictures = ["data.validation_from_test=true", "data.crop_padding=1"]
    run(tiny("ensemble.methods=['SWA','FGE','TTA']", *pictures), folder)
    return folder


@pytest.mark.slow
def test_a_temperature_of_the_mean_gives_what_the_comparison_has(finished: Path) -> None:
    found = [row for row in measure("digits", finished, 1, METHODS) if row.by == "pooled"]
    rows = {
        row["method"]: row for row in map(json.loads, (finished / "results.jsonl").read_text().splitlines())
    }
    assert [row.method for row in found] == list(METHODS)
    for row in found:
        expected = rows[row.method]
        assert row.members == expected["members"]
        assert row.temperature == pytest.approx(expected["calibrated"]["temperature"], rel=1e-4)
        for metric in ("accuracy", "nll", "ece"):
            assert getattr(row, metric) == pytest.approx(expected["calibrated"]["test"][metric], rel=1e-4)


@pytest.mark.filterwarnings("default:only the mean has a temperature")
def test_a_shared_temperature_gives_what_a_calibrated_ensemble_predicts(finished: Path) -> None:
    (found,) = [row for row in measure("digits", finished, 1, ["FGE"]) if row.by == "shared"]
    with open_run(finished, Reporter()) as session:
        validation, test = session.splits.validation, session.splits.test
        ensemble = session.load_ensemble(session.folder.ensemble(1, "FGE"))
        fitted = ensemble.calibrated(session.in_batches(validation), by="shared")
        expected = session.task.summarize(fitted.evaluate(session.in_batches(test)))
        of_members = fitted.temperatures.members
    assert found.shared == pytest.approx(of_members[0] if of_members else 1.0, rel=1e-4)
    assert found.temperature == pytest.approx(fitted.temperatures.pooled, rel=1e-4)
    assert (found.accuracy, found.nll) == pytest.approx((expected["accuracy"], expected["nll"]), rel=1e-4)


def test_one_model_has_no_temperature_to_share(finished: Path) -> None:
    assert [row.by for row in measure("digits", finished, 1, ["SWA"])] == ["pooled"]


def test_what_is_recorded_is_not_measured_again(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study(tmp_path, tmp_path, tmp_path / "recorded.json")
    asked: list[list[str]] = []

    def note(data: str, folder: Path, seed: int, methods: Sequence[str]) -> list[Pooled]:  # noqa: ARG001
        asked.append(list(methods))
        return [row(data, method, seed, "pooled", 0.2) for method in methods]

    monkeypatch.setattr(pooling, "measure", note)
    study.record("digits", finished, 1, ["SWA"])
    study.record("digits", finished, 1, ["SWA", "FGE"])
    study.record("digits", finished, 1, ["SWA", "FGE"])
    assert asked == [["SWA"], ["FGE"]]
    rows, machines = pooling.read(study.recorded)
    assert [found.method for found in rows] == ["SWA", "FGE"]
    assert len(machines) == 1


def row(data: str, method: str, seed: int, by: str, nll: float) -> Pooled:
    shared, temperature = (4.0, 0.5) if by == "shared" else (1.0, 1.5)
    return Pooled(data, method, seed, 1 if method == "SWA" else 4, by, shared, temperature, 0.9, nll, 0.01)


def test_the_tables_have_differences_over_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    for seed in (11, 12, 13):
        for method in (name for name in MEASURED["CIFAR-10"] if name != "Star"):
            base = 0.2 + 0.01 * seed
            rows.append(row("CIFAR-10", method, seed, "pooled", base))
            if method != "SWA":
                rows.append(row("CIFAR-10", method, seed, "shared", base - 0.01 - 0.001 * (seed - 12)))
    monkeypatch.setattr(pooling, "read", lambda _: (rows, [{"processor": "x", "torch": "2.13.0"}]))
    text = results(tmp_path)
    assert "### MNIST-1D\n\nNot measured yet.\n" in text
    assert "### CIFAR-10, test data, seeds 11, 12, 13\n\nNot measured yet: Star.\n" in text
    # The differences are -0.009, -0.010 and -0.011: the reach is 4.3027 * 0.001 / sqrt(3).
    assert (
        "| FGE | 4 | 0.3200 ± 0.0058 | 0.3100 ± 0.0052 | -0.0100 (-0.0125 to -0.0075) | better | "
        "+0.00 (+0.00 to +0.00) | 4.00, 0.50 | 3 of 3 |" in text
    )
    assert "| PFGE | -0.0100 (-0.0125 to -0.0075) | better | +0.00 (+0.00 to +0.00) | undecided |" in text
    assert "`python -m studies.pooling`; x, torch 2.13.0." in text


def test_the_page_in_the_docs_has_what_is_recorded(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(pooling.PAGE.read_text())
    write_results(page, results(pooling.RECORDED))
    assert page.read_text() == pooling.PAGE.read_text(), "run python -m studies.pooling --stage write"


def test_ensembles_that_are_not_made_yet_are_left_out(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Part("report", 0.05, 1, tuple(cifar10.BASE))
    shutil.copytree(finished, part.folder(tmp_path))
    asked: list[str] = []
    monkeypatch.setattr(Study, "record", lambda *given: asked.extend(given[-1]))
    pooling.run_cifar10(Study(tmp_path, tmp_path, tmp_path / "recorded.json"))
    assert asked == ["SWA", "FGE", "FGE*", "TTA"]
