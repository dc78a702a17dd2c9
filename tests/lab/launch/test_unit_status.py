"""The files that show which units run and why others failed."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from pfge.lab.launch import units as module
from pfge.lab.launch.units import UnitStatus
from pfge.lab.run.folder import RunFolder
from pfge.storage.files import StorageError

HOLDING = """
import sys
from pathlib import Path
from pfge.lab.launch.units import UnitStatus
from pfge.lab.run.folder import RunFolder
with UnitStatus(RunFolder(Path(sys.argv[1]))).held("seed 1: w0"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_unit_runs_in_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    status = UnitStatus(RunFolder(tmp_path))
    assert not status.is_running("seed 1: w0")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path)], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert status.is_running("seed 1: w0")
        assert not status.is_running("seed 2: w0")
        with (
            pytest.raises(StorageError, match=r"another process runs seed 1: w0 in .*; wait for it"),
            status.held("seed 1: w0"),
        ):
            pass
        other.kill()
    assert not status.is_running("seed 1: w0")


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ValueError("lower\nthe rate"), "lower the rate"), (RuntimeError("broken"), "RuntimeError: broken")],
)
def test_the_reason_of_a_failure_stays_until_the_next_attempt(
    tmp_path: Path, error: Exception, reason: str
) -> None:
    status = UnitStatus(RunFolder(tmp_path))
    with pytest.raises(type(error)), status.held("seed 1: FGE*"):
        raise error
    assert status.failure("seed 1: FGE*") == reason
    with status.held("seed 1: FGE*"):
        assert status.failure("seed 1: FGE*") is None


def test_a_reason_gives_no_orders_to_a_terminal(tmp_path: Path) -> None:
    status = UnitStatus(RunFolder(tmp_path))
    status.note_failure("seed 1: w0", "é \x1b[2J\n")
    assert status.failure("seed 1: w0") == "é ?[2J?"


def test_status_files_are_removed_at_the_end(tmp_path: Path) -> None:
    status = UnitStatus(RunFolder(tmp_path))
    with status.held("seed 1: w0"):
        pass
    status.remove()
    assert list(tmp_path.iterdir()) == []


def test_how_far_a_unit_is_can_be_read_by_others(tmp_path: Path) -> None:
    status = UnitStatus(RunFolder(tmp_path))
    assert status.progress("seed 1: w0") == ""
    with status.held("seed 1: w0"):
        status.note_progress("seed 1: w0", "10/20")
        status.note_progress("seed 1: w0", "20/20")
    assert status.progress("seed 1: w0") == "20/20"
    status.forget("seed 1: w0")
    assert status.progress("seed 1: w0") == ""


def test_what_a_unit_says_is_read_in_whole_lines_and_once(tmp_path: Path) -> None:
    status = UnitStatus(RunFolder(tmp_path))
    assert status.said("a", 0) == ([], 0)
    status.note_failure("a", "makes the folder")
    status.say("a", "one\ntwo")
    lines, after = status.said("a", 0)
    assert lines == ["one", "two"]
    assert status.said("a", after) == ([], after)
    status.say("a", "three")
    assert status.said("a", after) == (["three"], after + len("three\n"))


def test_a_full_disk_does_not_hide_why_a_unit_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_text", refuse)
    status = UnitStatus(RunFolder(tmp_path))
    with pytest.raises(ValueError, match="lower the rate"), status.held("seed 1: w0"):
        raise ValueError("lower the rate")
    assert not status.note_failure("seed 1: w0", "lower the rate")
