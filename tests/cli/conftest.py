import shutil
import warnings
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.every_command import RUN_SETTINGS
from tests.lab.tiny import run, tiny
from tests.made_once import made_once


@pytest.fixture(autouse=True)
def _leave_the_interpreter_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command prints warnings in its own way, and writes into the current folder."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an ensemble and validation data, for one module."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(tiny("ensemble.methods=['PFGE']", "data.validation_from_test=true"), folder)
    return folder


@pytest.fixture
def pfge(finished: Path) -> Path:
    """An ensemble in a run."""
    return finished / "seed-1" / "ensembles" / "PFGE"


@pytest.fixture(scope="session")
def run_of_every_command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        run(tiny(*RUN_SETTINGS), folder)
        Image.new("L", (8, 8)).save(folder / "digit.png")

    return made_once(tmp_path_factory, "run-of-every-command", make)


@pytest.fixture
def copied_run(run_of_every_command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a finished run, which is the current folder, for the arguments of `every_command`."""
    shutil.copytree(run_of_every_command, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    return tmp_path / "run"
