"""What a loss of power leaves: every name is on disk once the folder that has it was synced."""

import os
import stat
from collections import defaultdict
from pathlib import Path

import pytest

from pfge import Ensemble
from tests.lab.tiny import run, tiny
from tests.toy_members import make_members
from tests.toys import make_mlp


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[str]]:
    """The names that each folder had when it was synced, by the folder's inode, which a rename leaves."""
    found: dict[int, set[str]] = defaultdict(set)
    sync = os.fsync

    def note(descriptor: int) -> None:
        sync(descriptor)
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            found[status.st_ino] |= {*os.listdir(descriptor)}

    monkeypatch.setattr(os, "fsync", note)
    return found


def assert_synced(folder: Path, synced: dict[int, set[str]], count: int) -> None:
    paths = [path for path in folder.rglob("*") if path.name != ".lock"]
    assert len(paths) >= count
    assert [path for path in paths if path.name not in synced[path.parent.stat().st_ino]] == []


def test_every_file_and_folder_of_a_run_is_synced(tmp_path: Path, synced: dict[int, set[str]]) -> None:
    run(tiny("ensemble.methods=['SWA','PFGE']"), tmp_path / "runs" / "mine")
    assert_synced(tmp_path, synced, 20)


def test_every_file_and_folder_of_an_ensemble_is_synced(tmp_path: Path, synced: dict[int, set[str]]) -> None:
    Ensemble(make_members(), make_mlp).save(tmp_path / "new" / "saved")
    assert_synced(tmp_path, synced, 6)
