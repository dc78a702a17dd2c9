import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.every_command import RUN_SETTINGS
from tests.lab.tiny import run, tiny
from tests.made_once import made_once


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
