"""`pfge verify`."""

from pathlib import Path

import pytest

from pfge import Ensemble
from pfge.cli.main import main
from tests.toy_members import make_members
from tests.toys import make_mlp


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    Ensemble(make_members(), make_mlp).save(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_whole_ensemble_ends_with_0(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(saved)]) == 0
    assert capsys.readouterr().out == "4 whole, 0 damaged, 0 not covered\n"


def test_damage_ends_with_1_and_names_the_file(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saved / "\x1b[2Jnotes").write_text("mine")
    (file, *_) = saved.glob("member-*")
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["verify", str(saved)]) == 1
    damaged, other, counts = capsys.readouterr().out.splitlines()
    assert damaged.startswith(f"{file}: damaged: ")
    assert damaged.endswith("it is truncated")
    assert other == f"{saved}/\\x1b[2Jnotes: not covered: pfge does not record a SHA-256 of this file"
    assert counts == "3 whole, 1 damaged, 1 not covered"


def test_a_missing_path_ends_with_2(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(saved / "missing")]) == 2
    assert capsys.readouterr().err.endswith("missing does not exist; check the path\n")
