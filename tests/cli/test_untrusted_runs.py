"""A run folder may be a stranger's: no command runs code from it, or reads elsewhere because it says so."""

import sys
from pathlib import Path

import pytest

from pfge.lab.config.toml import load_experiment, to_toml
from tests.cli.every_command import READING
from tests.cli.test_main import Captured, _leave_the_interpreter_as_it_was, refused  # noqa: F401


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that a module with the name `hostile` makes when it is imported."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "hostile.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "hostile", raising=False)
    return tmp_path / "mark"


def set_in_config(folder: Path, *settings: str) -> None:
    config = folder / "config.toml"
    config.write_text(to_toml(load_experiment(config, settings)))


@pytest.mark.parametrize("command", ["diagnose", "landscape", "formats"])
def test_a_run_without_w0_is_not_trained(
    copied_run: Path, mark: Path, capsys: Captured, command: str
) -> None:
    (copied_run / "seed-1" / "w0.safetensors").unlink()
    set_in_config(copied_run, "engine.logger=hostile:log")
    message = refused(capsys, [command, *READING[command]])
    assert not mark.exists()
    assert not (copied_run / "seed-1" / "w0.safetensors").exists()
    assert message == ". has no w0 for seed 1 yet; run pfge compare --out . to its end"
