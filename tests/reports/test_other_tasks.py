"""A run of another task than classification: its own metrics in tables, figures and on the page."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pfge.reports.contents import report_figures, report_tables
from pfge.reports.page import make_page
from pfge.reports.run import Run
from pfge.reports.statistics import task_of
from pfge.reports.summary import findings
from pfge.storage.files import write_json, write_tensors
from pfge.tasks import DEFAULT_TASK
from tests.reports.made_run import (
    LENGTH,
    MEMBERS,
    evaluation,
    form_rows,
    heads,
    make_run,
    result,
    texts,
    with_validation,
    write_forms,
    write_results,
)
from tests.tasks.fractions import Fractions

MSE = {"w0": 0.5, "SWA": 0.4, "FGE": 0.2, "FGE*": 0.3, "SWAG": 0.25, "SWAG*": 0.35, "PFGE": 0.21}
PARTS = ("test", "test.calibrated", "validation", "validation.calibrated")
TASK = {"name": "Fractions", "options": {"places": 6}}


def row(method: str, seed: int) -> dict[str, Any]:
    mse = MSE[method] + 0.01 * (seed - 1)
    members = MEMBERS[method]
    found = result(method, seed) | {"task": TASK, "test": {"mse": mse}}
    found["calibrated"] = {"temperature": 0.9, "test": {"mse": mse - 0.01}}
    found["calibrated_members"] = {"temperatures": [0.9] * members, "test": {"mse": mse - 0.02}}
    for kind in ("each", "growing"):
        found[kind] = {"test": [{"mse": mse + 0.1 / (k + 1)} for k in range(members)]}
    return found


@pytest.fixture
def folder(tmp_path: Path, fractions: Fractions) -> Path:  # noqa: ARG001
    made = make_run(tmp_path / "run", examples=0)
    write_results(made, [with_validation(row(method, seed)) for seed in (1, 2) for method in MSE])
    wave = torch.linspace(-0.1, 0.1, 200, dtype=torch.float64)
    for seed in (1, 2):
        for number, method in enumerate(MSE):
            file = made / f"seed-{seed}" / "scores" / f"{method.replace('*', '-last')}.safetensors"
            file.parent.mkdir(parents=True, exist_ok=True)
            score = row(method, seed)["test"]["mse"] + wave.roll(3 * number)
            write_tensors(file, {f"{part}.brier": score for part in PARTS})
    return made


def test_tables_have_the_columns_of_the_task(folder: Path) -> None:
    methods, calibration, differences = report_tables(Run(folder))
    assert heads(methods) == ["method", "members", "bytes", "memory", "MSE", "iterations"]
    assert texts(methods)[-1] == ["PFGE", "4", "4,000,000", "4x", "0.2150 ± 0.0050", f"{LENGTH}"]
    assert heads(calibration) == ["method", "T", "MSE", "MSE at T", "MSE at members' T"]
    assert texts(calibration)[0][2:] == ["0.5050 ± 0.0050", "0.4950 ± 0.0050", "0.4850 ± 0.0050"]
    assert heads(differences) == ["method", "MSE", "95 % interval", "verdict", "would decide it"]
    assert [cells[1] for cells in texts(differences)][:2] == ["+0.2900", "+0.1900"]
    assert "test examples" in differences.note("")


def test_figures_show_the_metrics_of_the_task_and_no_reliability(folder: Path) -> None:
    figures = {figure.name: figure for figure in report_figures(Run(folder))}
    assert figures.keys() == {"tradeoff", "rates", "members"}
    assert [panel.y_label for panel in figures["tradeoff"].panels] == ["MSE"]


def test_the_findings_are_of_the_task(folder: Path) -> None:
    best, ship, gain, claim = findings(Run(folder))
    assert (best.about, best.answer) == ("Lowest MSE", "FGE or PFGE")
    assert best.why.startswith("FGE has the best mean, 0.2050 ± 0.0050 at 20")
    assert (ship.kind, ship.answer) == ("ship", "FGE, seed 1")
    assert "within the margin, or one standard error, of the best in MSE; " in ship.why
    assert (gain.about, gain.answer) == ("FGE against w0, on test data", "Better")
    assert "With less memory, the lowest MSE is that of PFGE (4×) or SWA (1×)." in ship.why
    assert (claim.kind, claim.answer) == ("claim", "Does not hold")
    assert "MSE +0.0100 (95 % interval" in claim.why
    assert "over test examples" in claim.why


def test_the_page_says_nothing_of_accuracy(folder: Path) -> None:
    body = make_page([Run(folder)])
    words = body[body.index("<main>") :]
    assert "MSE" in words
    assert "accuracy" not in words
    assert "NLL" not in words


def test_measurements_of_another_task_are_left_out(folder: Path) -> None:
    write_forms(folder, form_rows(methods=["PFGE"]))
    file = folder / "seed-1" / "ensembles" / "PFGE" / "evaluation.json"
    file.parent.mkdir(parents=True)
    write_json(file, evaluation("PFGE", 1))
    run = Run(folder)
    assert (run.formats, run.evaluations) == ([], [])
    assert [text.partition(":")[2] for text in run.left_out] == [
        f" its task is {DEFAULT_TASK}, and the results are of Fractions(places=6); remove it and run "
        f"{command} again"
        for command in ("pfge formats", "pfge evaluate")
    ]


def test_runs_of_different_tasks_have_a_section_each(folder: Path, tmp_path: Path) -> None:
    page = make_page([Run(folder), Run(make_run(tmp_path / "classes"))])
    assert page.index(">MSE</th>") < page.index(">accuracy %</th>")
    assert "The runs are not in one table: they are of different tasks." in page


def test_results_of_different_tasks_have_no_table_together(folder: Path, tmp_path: Path) -> None:
    rows = [*Run(folder).results, *Run(make_run(tmp_path / "classes")).results]
    with pytest.raises(ValueError, match=r"cannot share a table, got Fractions\(places=6\) and "):
        task_of(rows)
    assert task_of(rows[-1:]) == DEFAULT_TASK
