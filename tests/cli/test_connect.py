"""`pfge connect`: three tables and a figure, the same when it is run again."""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pfge.cli.main import main
from tests.cli.captured import cells, squeezed
from tests.lab.experiments.connect_settings import SETTINGS
from tests.lab.tiny import counted_steps, run, tiny

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    run(tiny(*SETTINGS), path)
    return path


def refused(captured: Captured, *arguments: str) -> str:
    assert main(["connect", *arguments]) == 2
    printed = captured.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line.removeprefix("pfge: error: ")


@pytest.mark.slow
def test_three_tables_and_a_figure_that_are_the_same_again(capsys: Captured, folder: Path) -> None:
    assert main(["connect", str(folder), "--pairs", "1"]) == 0
    printed, said = capsys.readouterr()
    expected = f"{folder}: fits and traces 2 curves between adjacent members"
    assert squeezed(said).startswith(squeezed(expected))
    assert [row[:2] for row in cells(printed)] == [["FGE", "1"], ["PFGE", "1"]] * 3
    for title in ("test error along the curve, %", "training loss along the curve", "mode connectivity"):
        assert title in printed
    figure = (folder / "connectivity.svg").read_bytes()
    assert ET.fromstring(figure).tag.endswith("svg")
    with counted_steps() as steps:
        assert main(["connect", str(folder), "--pairs", "1"]) == 0
    assert steps == [0]
    assert capsys.readouterr().out == printed
    assert (folder / "connectivity.svg").read_bytes() == figure


def test_without_matplotlib_it_says_where_the_figure_can_be_seen(
    capsys: Captured, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "pfge.reports.figures.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (folder / "connectivity.svg").unlink(missing_ok=True)
    assert main(["connect", str(folder), "--pairs", "1"]) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert 'No figure: figures need matplotlib; pip install "pfge[figures]"' in said
    assert f"pfge report {folder}" in said.replace(" ", "").replace("pfgereport", "pfge report ")
    assert not (folder / "connectivity.svg").exists()


def test_settings_may_be_given(capsys: Captured, folder: Path) -> None:
    message = refused(capsys, str(folder), "--set", "connect.points=1")
    assert message == "connect.points must be at least 2, the ends, got 1"


def test_too_many_pairs_are_refused(capsys: Captured, folder: Path) -> None:
    message = refused(capsys, str(folder), "--pairs", "9")
    assert message == "PFGE of seed 1 has 3 adjacent pairs, so 1 to 3 can be chosen, got 9"


def test_a_run_without_members_to_connect_is_one_line(capsys: Captured, tmp_path: Path) -> None:
    run(tiny("ensemble.methods=['SWA','Star']", "ensemble.length=4"), tmp_path / "run")
    assert refused(capsys, str(tmp_path / "run")) == (
        f"{tmp_path / 'run'} must have members of PFGE or FGE to connect, got SWA, Star; run pfge compare "
        "with one of them in ensemble.methods and another --out"
    )


def test_a_folder_without_a_run_is_one_line(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "none"
    assert refused(capsys, str(path)) == f"{path} is not a run folder; make one by pfge compare --out {path}"


def test_a_number_of_pairs_is_a_number_or_all(capsys: Captured, folder: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["connect", str(folder), "--pairs", "few"])
    assert ended.value.code == 2
    assert "argument --pairs" in capsys.readouterr().err
