"""`pfge report`: a page, tables, figures, and one line for every mistake."""

import csv
import io
import sys
from pathlib import Path

import pytest

from pfge.cli.main import main
from tests.reports.made_run import make_run, write_evaluations

Captured = pytest.CaptureFixture[str]


def refused(captured: Captured, *arguments: str) -> str:
    assert main(["report", *arguments]) == 2
    printed = captured.readouterr()
    assert printed.out == ""
    return printed.err.removeprefix("pfge: error: ").removesuffix("\n")


def test_the_page_goes_into_the_run_folder_or_where_it_is_wanted(capsys: Captured, tmp_path: Path) -> None:
    make_run(tmp_path / "run", examples=0)
    assert main(["report", "run"]) == 0
    assert capsys.readouterr().out == "Report: run/report.html\n"
    assert main(["report", "run", "run", "--out", "both.html"]) == 0
    assert (tmp_path / "both.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("markdown", "| PFGE | 4 | 4,000,000 | 4x | 93.75 ± 0.25 | 0.2150 ± 0.0050 |"),
        ("latex", r"PFGE & 4 & 4,000,000 & 4x & 93.75 $\pm$ 0.25 & 0.2150 $\pm$ 0.0050 &"),
        ("csv", "PFGE,4,4000000,4,93.75,0.25,0.2150,0.0050,"),
    ],
)
def test_tables_are_printed(capsys: Captured, tmp_path: Path, kind: str, expected: str) -> None:
    make_run(tmp_path / "run", examples=0)
    assert main(["report", "run", "--format", kind, "--table", "methods"]) == 0
    assert expected in capsys.readouterr().out
    assert not (tmp_path / "run" / "report.html").exists()


def test_one_table_as_csv_is_nothing_but_csv(capsys: Captured, tmp_path: Path) -> None:
    make_run(tmp_path / "run", examples=0)
    assert main(["report", "run", "--format", "csv", "--table", "calibration", "--out", "t.csv"]) == 0
    assert capsys.readouterr().out == ""
    rows = list(csv.reader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert {len(row) for row in rows} == {15}
    assert rows[1][:3] == ["w0", "1.500", "0.000"]


def test_several_tables_as_csv_have_a_file_each(capsys: Captured, tmp_path: Path) -> None:
    make_run(tmp_path / "run", examples=0)
    write_evaluations(tmp_path / "run", seeds=[1])
    for out in ([], ["--out", "all.csv"]):
        assert refused(capsys, "run", "--format", "csv", *out) == (
            "a CSV file holds one table, got 9 (methods, calibration, differences, evaluation, "
            "unknown-inputs, corruptions); choose one with --table, or give a folder as --out, got "
            f"{out[-1] if out else 'nothing'}"
        )
    assert main(["report", "run", "--format", "csv", "--out", "tables"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:5] == [
        f"tables/{name}.csv"
        for name in ("methods", "calibration", "differences", "evaluation", "unknown-inputs")
    ]
    assert "tables/evaluation-2.csv" in printed
    for file in printed:
        rows = list(csv.reader(io.StringIO(Path(file).read_text())))
        assert len({len(row) for row in rows}) == 1


def test_columns_are_chosen_by_how_they_begin(capsys: Captured, tmp_path: Path) -> None:
    make_run(tmp_path / "run", examples=0)
    assert (
        main(["report", "run", "--format", "latex", "--table", "methods", "--columns", "accuracy,nll"]) == 0
    )
    printed = capsys.readouterr().out
    assert printed.startswith("% These tables need \\usepackage{booktabs} in the preamble.\n")
    assert r"method & accuracy \% & NLL \\" in printed
    assert refused(capsys, "run", "--format", "csv", "--table", "methods", "--columns", "nll,acc") == (
        "--columns must be the beginnings of column names (members; bytes; memory; accuracy %; NLL; ECE %; "
        "iterations), got 'acc'"
    )
    assert "add --format markdown, latex or csv" in refused(capsys, "run", "--columns", "nll")


def test_the_tables_of_a_run_are_listed(capsys: Captured, tmp_path: Path) -> None:
    make_run(tmp_path / "run", examples=0)
    assert main(["report", "run", "--table"]) == 0
    assert capsys.readouterr().out == (
        "methods: methods\ncalibration: calibration\ndifferences: differences from PFGE\n"
    )
    assert not (tmp_path / "run" / "report.html").exists()


def test_figures_are_drawn_instead_of_a_page(capsys: Captured, tmp_path: Path) -> None:
    make_run(tmp_path / "run", methods=["w0"], examples=0)
    assert main(["report", "run", "--figures", "drawn"]) == 0
    assert capsys.readouterr().out == "drawn/tradeoff.svg\ndrawn/tradeoff.png\n"
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["tradeoff.png", "tradeoff.svg"]
    assert not (tmp_path / "run" / "report.html").exists()


def test_mistakes_end_in_one_line(capsys: Captured, tmp_path: Path) -> None:
    make_run(tmp_path / "run", methods=[])
    assert refused(capsys, "nowhere") == (
        "nowhere holds no run: neither config.toml nor results.jsonl; make one by pfge compare --out nowhere"
    )
    assert refused(capsys, "run", "--format", "latex") == "run has no results yet"
    assert refused(capsys, "run", "--table", "methods") == (
        "--table needs printed tables; add --format markdown, latex or csv"
    )
    make_run(tmp_path / "whole", examples=0)
    assert refused(capsys, "whole", "--format", "csv", "--table", "x") == (
        "--table must be one of methods, calibration, differences, got 'x'"
    )


def test_figures_without_matplotlib_end_in_one_line(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "run", examples=0)
    monkeypatch.delitem(sys.modules, "pfge.reports.figures.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert 'pip install "pfge[figures]"' in refused(capsys, "run", "--figures", "drawn")
