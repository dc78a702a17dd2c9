import argparse
import sys
import warnings
from pathlib import Path

import pytest

from pfge import Ensemble
from pfge.cli.compress import parse_bytes
from pfge.cli.main import main
from pfge.packed import PackSettings, pack_members
from tests.packed.test_members import close_members
from tests.toys import assert_same_weights, make_mlp


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ensemble; the command puts the current folder on sys.path and prints warnings in its own way."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    Ensemble(close_members(), make_mlp, method="PFGE").save(tmp_path / "whole")
    return tmp_path


def test_a_compressed_copy_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--delta-bits", "2", "--base-bits", "16", "--group", "8", "--small-bits", "16"]
    assert main(["compress", str(folder / "whole"), str(folder / "small"), *arguments]) == 0
    loaded = Ensemble.load(folder / "small", make_mlp)
    packed = pack_members(close_members(), 2, PackSettings(16, 8, 16))
    for one, two in zip(loaded.members, packed, strict=True):
        assert_same_weights(one, two)
    assert (loaded.method, loaded.model) == ("PFGE", "tests.toys:make_mlp")
    files = sum(file.stat().st_size for file in (folder / "small").iterdir())
    whole = 4 * (99 * 4 + 8)
    expected = (
        f"{whole:,} bytes before, {packed.nbytes:,} after ({packed.nbytes / whole * 4:.2f} of one member)"
    )
    assert f"4 members: {expected}, {files:,} on disk" in capsys.readouterr().out


def test_a_budget_is_kept(folder: Path) -> None:
    assert main(["compress", str(folder / "whole"), str(folder / "small"), "--budget", "1kB"]) == 0
    assert 950 < Ensemble.load(folder / "small", make_mlp).nbytes <= 1000


def test_a_budget_that_nobody_can_meet_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compress", str(folder / "whole"), str(folder / "small"), "--budget", "10"]) == 2
    assert "pfge: error: budget must be at least" in capsys.readouterr().err
    assert not (folder / "small").exists()


def test_the_original_is_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compress", str(folder / "whole"), str(folder / "small" / ".." / "whole")]) == 2
    assert "OUT must be another folder than ENSEMBLE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"), [("700", 700), ("1.5kB", 1500), ("2MB", 2_000_000), ("1GB", 1_000_000_000)]
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["much", "", "MB", "inf", "3 bytes"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no number of bytes such as 700kB or 2MB"):
        parse_bytes(text)
