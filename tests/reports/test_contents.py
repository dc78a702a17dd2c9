"""A metric is one entry of a task: it is in every table, figure and renderer without another change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pfge.cli.main import main
from pfge.reports.contents import report_figures, report_tables
from pfge.reports.page import make_page
from pfge.reports.run import Run
from pfge.reports.tables.table import Table, print_table, to_csv, to_html, to_latex, to_markdown
from pfge.storage.files import read_tensors, write_tensors
from pfge.tasks import Classification, Metric
from tests.reports import made_run
from tests.reports.made_run import heads, make_run, texts, write_evaluations, write_forms

WIDTH = Metric("width", "width", "higher", lambda _: 0.25, "%", 1, score="width", is_main=True)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose results have one metric more, 0.25 everywhere and 0.5 for FGE's test set."""
    monkeypatch.setattr(Classification, "metrics", (*Classification.metrics, WIDTH))
    measured, made = made_run.metrics, made_run.result

    def result(method: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        row = made(method, *arguments, **options)
        row["test"]["width"] = 0.5 if method == "FGE" else 0.25
        return row

    monkeypatch.setattr(made_run, "metrics", lambda *values: measured(*values) | {"width": 0.25})
    monkeypatch.setattr(made_run, "result", result)
    folder = make_run(tmp_path / "run")
    for file in folder.glob("seed-*/scores/*"):
        scores = read_tensors(file)[0]
        share = 0.5 if file.stem == "FGE" else 0.25
        write_tensors(file, scores | {"test.width": torch.full_like(scores["test.correct"], share)})
    write_evaluations(folder)
    write_forms(folder)
    return Run(folder)


def column(table: Table, head: str) -> dict[str, str]:
    place = heads(table).index(head)
    return {cells[0]: cells[place] for cells in texts(table)}


def test_a_new_main_metric_is_in_every_table(run: Run) -> None:
    assert run.left_out == []
    tables = {table.key: table for table in report_tables(run)}
    assert column(tables["methods"], "width %")["FGE"] == "50.0 ± 0.0"
    assert column(tables["calibration"], "width % at T")["FGE"] == "25.0 ± 0.0"
    assert column(tables["differences"], "width, points")["FGE"] == "+25.0"
    assert column(tables["differences"], "verdict")["FGE"].endswith("width better")
    assert column(tables["formats"], "width %")["w0"] == "25.0 ± 0.0"
    assert ["width", "0.2500"] in texts(tables["evaluation"])
    assert ["noise", "width %", *["25.0"] * 6] in texts(tables["corruptions"])


def test_the_best_of_a_new_metric_is_marked(run: Run) -> None:
    methods = report_tables(run)[0]
    place = heads(methods).index("width %")
    best = [str(row.cells[0]) for row in methods.rows if getattr(row.cells[place], "best", False)]
    assert best == ["FGE"]


@pytest.mark.parametrize(
    ("render", "expected"),
    [
        (to_markdown, "| 50.0 ± 0.0 ▲ |"),
        (to_latex, r"& \textbf{50.0 $\pm$ 0.0} &"),
        (to_csv, ",50.0,0.0,"),
        (to_html, "><strong>50.0 ±&nbsp;0.0</strong></td>"),
    ],
)
def test_a_new_metric_is_in_every_renderer(run: Run, render: Callable[[Table], str], expected: str) -> None:
    assert expected in render(report_tables(run)[0])


def test_a_new_metric_is_in_the_terminal_and_on_the_page(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table(report_tables(run)[0])
    assert "│ 50.0 ± 0.0 ▲ │" in capsys.readouterr().out
    assert main(["table", str(run.folder.path)]) == 0
    assert "| 50.0 ± 0.0 ▲ |" in capsys.readouterr().out
    page = make_page([run])
    assert "><strong>50.0 ±&nbsp;0.0</strong></td>" in page
    assert "width, % (higher is better)" in page


def test_a_new_metric_that_examples_have_is_in_every_figure_of_metrics(run: Run) -> None:
    figures = {figure.name: figure for figure in report_figures(run)}
    for name in ("tradeoff", "members", "corruptions"):
        assert any(panel.y_label == "width, %" for panel in figures[name].panels)
