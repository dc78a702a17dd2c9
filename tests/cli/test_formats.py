"""`pfge formats`: one table, the same when it is run again, and one line for every mistake."""

from pathlib import Path

import pytest

from pfge.cli.main import main
from tests.cli.captured import Captured, cells, refused, squeezed
from tests.lab.tiny import run, tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    run(tiny("ensemble.methods=['PFGE']", "ensemble.length=8", "data.validation=50"), path)
    return path


def test_the_table_has_every_form_and_is_the_same_again(capsys: Captured, folder: Path) -> None:
    assert main(["formats", str(folder)]) == 0
    printed, said = capsys.readouterr()
    first = f"{folder}: measures 2 ensembles in each storage format"
    assert "".join(said.split()).startswith("".join(first.split()))  # wherever the lines end
    rows = cells(printed)
    assert [row[:3] for row in rows] == [
        ["w0", "float32", ""],
        ["w0", "int8 base", ""],
        ["PFGE", "float32", ""],
        ["PFGE", "float32", "yes"],
        ["PFGE", "int8", ""],
        ["PFGE", "int8", "yes"],
        ["PFGE", "int8 base + 3 bits", ""],
        ["PFGE", "int8 base + 3 bits", "yes"],
        ["PFGE", "int8 base + 1 bit", ""],
        ["PFGE", "int8 base + 1 bit", "yes"],
    ]
    assert rows[2][3:6] == ["194,304", "2x", "2"]  # as the comparison has it
    assert squeezed(f"To draw this: pfge report {folder}") in squeezed(printed)
    assert main(["formats", str(folder)]) == 0
    assert capsys.readouterr().out == printed


def test_other_commands_show_them_too(capsys: Captured, folder: Path) -> None:
    assert main(["formats", str(folder)]) == 0
    capsys.readouterr()
    assert main(["table", str(folder)]) == 0
    assert "| PFGE | int8 base + 3 bits | yes |" in capsys.readouterr().out
    assert main(["table", str(folder), "--part", "validation"]) == 0
    assert "int8 base + 3 bits" not in capsys.readouterr().out  # they are measured on test data alone
    assert main(["report", str(folder), "--format", "csv", "--table", "formats"]) == 0
    assert "PFGE,float32,,194304,2,2," in capsys.readouterr().out


def test_mistakes_end_in_one_line(capsys: Captured, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "none"
    assert refused(capsys, ["formats", str(path)]) == (
        f"{path} is not a run folder; make one by pfge compare --out {path}"
    )
    assert "was made with another config" in refused(
        capsys, ["formats", str(folder), "--set", "ensemble.high=1"]
    )
