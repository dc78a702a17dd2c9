"""Runs of a regression of fixed noise: what is said of methods does not depend on the unit of the targets."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pfge.reports.contents import comparison_tables, report_figures
from pfge.reports.run import Run
from pfge.reports.statistics import measured
from pfge.reports.summary import Finding, findings
from pfge.reports.tables.ensembles import formats_table
from pfge.reports.tables.table import is_best
from pfge.reports.verdicts import find_gaps
from pfge.storage.files import write_tensors
from pfge.tasks import Regression
from tests.reports.figures.drawn_series import drawn
from tests.reports.made_run import form_rows, heads, make_run, result, write_forms, write_results

TASK = Regression()
STORED = {"name": "Regression", "options": {"noise": "fixed"}}
MEMBERS = {"SWA": (1, 0.5), "FGE": (20, 0.25), "PFGE": (4, 0.25)}
"""How many members each method has, and how far their means are spread."""
EXAMPLES = 200
CALIBRATED = "test.calibrated"


def write_run(folder: Path, unit: float, *, calibrated: bool = True) -> Run:
    """Make a run of three seeds whose targets, and the means that members predict, are in some unit."""
    make_run(folder, seeds=(1, 2, 3), examples=0)
    generator = torch.Generator().manual_seed(0)
    targets = torch.randn(EXAMPLES, generator=generator)
    common = targets + 0.6 * torch.randn(EXAMPLES, generator=generator)
    half = EXAMPLES // 2
    rows = []
    for seed in (1, 2, 3):
        for method, (members, spread) in MEMBERS.items():
            pool = TASK.pool()
            for _ in range(members):
                means = common + spread * torch.randn(EXAMPLES, generator=generator)
                pool.add(TASK.predictions(unit * means))
            pooled = pool.result()
            noise = TASK.fit_calibration(pooled[:half], unit * targets[:half])
            metrics, tensors = {}, {}
            for kind, predictions in (("", pooled), (".calibrated", TASK.calibrate(pooled, noise))):
                for part, place in (("validation", slice(half)), ("test", slice(half, None))):
                    scores = TASK.score(predictions[place], unit * targets[place])
                    metrics[part + kind] = TASK.summarize(scores)
                    tensors |= {f"{part}{kind}.{name}": of for name, of in scores.tensors.items()}
            row: dict[str, Any] = result(method, seed) | {"task": STORED, "test": metrics["test"]}
            for left_out in ("each", "growing", "calibrated", "calibrated_members"):
                del row[left_out]
            if calibrated:
                at = {"test": metrics["test.calibrated"], "validation": metrics["validation.calibrated"]}
                row |= {"validation": metrics["validation"], "calibrated": {"temperature": noise, **at}}
                row["calibrated_members"] = {"temperatures": [noise] * row["members"], **at}
            rows.append(row)
            file = folder / f"seed-{seed}" / "scores" / f"{method}.safetensors"
            file.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(file, tensors)
    write_results(folder, rows)
    return Run(folder)


def answers(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.about, finding.answer) for finding in found]


def marked(run: Run) -> dict[str, list[str]]:
    """Return the methods that are marked as the best in each column of the table of methods."""
    table = comparison_tables(run.folder, run.results)[0]
    return {
        head: names
        for place, head in enumerate(heads(table))
        if (names := [str(row.cells[0]) for row in table.rows if is_best(row.cells[place])])
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[float, Run]:
    folder = tmp_path_factory.mktemp("units")
    return {unit: write_run(folder / f"{unit:g}", unit) for unit in (0.01, 1.0, 100.0)}


def test_findings_do_not_depend_on_the_unit(runs: dict[float, Run]) -> None:
    found = {unit: findings(run) for unit, run in runs.items()}
    assert answers(found[0.01]) == answers(found[1.0]) == answers(found[100.0])
    assert len(found[1.0]) == 4
    assert "the memory of one model (20 MB), calibrated on validation data" in found[1.0][0].why
    assert "against FGE with 20, calibrated on validation data: NLL " in found[1.0][3].why


def test_verdicts_do_not_depend_on_the_unit(runs: dict[float, Run]) -> None:
    def verdicts(unit: float) -> list[tuple[str, str, str]]:
        run = runs[unit]
        gaps = find_gaps(run.folder, run.results, "PFGE", part=CALIBRATED)
        return [(method, name, gap.verdict) for method, of in gaps.items() for name, gap in of.items()]

    assert verdicts(0.01) == verdicts(1.0) == verdicts(100.0)
    assert len(verdicts(1.0)) == 6
    assert {verdict for _, _, verdict in verdicts(1.0)} > {"worse"}
    # As predicted, the same data has other verdicts in other units, so there are none.
    assert find_gaps(runs[1.0].folder, runs[1.0].results, "PFGE") == {}


def test_the_table_of_differences_is_of_calibrated_predictions(runs: dict[float, Run]) -> None:
    (table,) = [t for t in comparison_tables(runs[1.0].folder, runs[1.0].results) if t.key == "differences"]
    fge, pfge = (
        sum(
            values["nll"]
            for row in runs[1.0].results
            if row.method == name and (values := measured(row, CALIBRATED))
        )
        / 3
        for name in ("FGE", "PFGE")
    )
    (cells,) = [row.cells for row in table.rows if str(row.cells[0]) == "FGE"]
    assert str(cells[1]) == f"{fge - pfge:+.4f}"
    assert table.title == "differences from PFGE, calibrated"
    assert table.note("").startswith("Each method minus PFGE, calibrated on validation data, with the 95 %")


def test_only_the_rmse_is_ranked_as_predicted(runs: dict[float, Run]) -> None:
    assert marked(runs[0.01]) == marked(runs[1.0]) == marked(runs[100.0])
    assert marked(runs[1.0]).keys() == {"RMSE"}
    note = comparison_tables(runs[1.0].folder, runs[1.0].results)[0].note("")
    assert "; NLL, CRPS, 90% coverage are not ranked before they are calibrated; " in note


def test_the_front_is_that_of_calibrated_predictions(runs: dict[float, Run]) -> None:
    def front(unit: float) -> list[float]:
        (figure,) = [figure for figure in report_figures(runs[unit]) if figure.name == "tradeoff"]
        assert figure.caption.endswith(" All are calibrated on validation data.")
        return [*drawn(figure, 0, "Pareto front").x]

    assert front(0.01) == front(1.0) == front(100.0)


def test_formats_are_not_ranked_as_predicted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1.0)
    lines = [row for row in form_rows(seeds=(1, 2, 3), methods=["PFGE"]) if not row["cascade"]]
    of_run = run.results[0].metrics["test"]
    write_forms(run.folder.path, [line | {"task": STORED, "test": dict(of_run)} for line in lines])
    found = Run(run.folder.path)
    assert len(found.formats) == 12
    assert not any("not compared" in problem for problem in found.problems())
    assert not any(row.folded for row in formats_table(found.formats).rows)
    assert " As int8" not in findings(found)[2].why


def test_without_a_calibration_nothing_is_compared_and_a_notice_says_why(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1.0, calibrated=False)
    assert findings(run) == []
    assert "differences" not in [table.key for table in comparison_tables(run.folder, run.results)]
    assert "tradeoff" not in [figure.name for figure in report_figures(run)]
    notice = (
        "Methods are not compared in NLL, CRPS, 90% coverage: predictions must be calibrated first, which "
        "needs validation data. Set data.validation in a new run."
    )
    assert notice in run.problems()
