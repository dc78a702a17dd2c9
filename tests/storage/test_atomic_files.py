"""Files that appear whole or not at all, and what is left of them after a kill."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pfge.storage.files import atomic_path, is_leftover, only_writer, remove_leftovers

PATIENCE = 60


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("new")
        assert not (tmp_path / "a").exists()
        assert is_leftover(temporary.name)
    assert (tmp_path / "a").read_text() == "new"
    assert names(tmp_path) == ["a"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")

    def write_half() -> None:
        with atomic_path(tmp_path / "a") as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_file_has_the_permissions_that_the_user_gives_to_new_files(tmp_path: Path) -> None:
    umask = os.umask(0o027)
    try:
        with atomic_path(tmp_path / "a") as temporary:
            temporary.write_text("new")
    finally:
        os.umask(umask)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "name",
    [
        ".w0.safetensors.0f3a99c1.part",
        ".manifest.json.4711.part",
        ".tmpAb3dEf",
        "member.draft",
        ".a.b.1.part",
    ],
)
def test_temporary_files_are_known_by_their_names(name: str) -> None:
    assert is_leftover(name)


@pytest.mark.parametrize(
    "name",
    ["thesis.part", ".thesis.part", "a.12.part", ".tmp", ".tmpdir", ".tmpAb3dEfg", "member", ".a.xyz.part"],
)
def test_other_files_are_not_taken_for_temporary_ones(name: str) -> None:
    assert not is_leftover(name)


def test_a_file_that_is_written_again_is_rid_of_its_own_leftovers_only(tmp_path: Path) -> None:
    for name in (".a.12.part", ".a.0f3a99c1.part", ".a.b.12.part", ".b.12.part", ".tmpAb3dEf"):
        (tmp_path / name).write_text("half")
    with atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("new")
    assert names(tmp_path) == [".a.b.12.part", ".b.12.part", ".tmpAb3dEf", "a"]


def test_two_writers_at_once_leave_each_other_alone(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a") as first:
        first.write_text("first")
        with atomic_path(tmp_path / "a") as second:
            second.write_text("second")
        assert (tmp_path / "a").read_text() == "second"
        remove_leftovers(tmp_path)
        assert first.exists()
    assert (tmp_path / "a").read_text() == "first"
    assert names(tmp_path) == ["a"]


def test_leftovers_are_removed_where_they_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "below" / "deep").mkdir(parents=True)
    for folder in ("", "below", "below/deep"):
        (tmp_path / folder / ".a.12.part").write_text("half")
    (tmp_path / "below" / "a").write_text("whole")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["below", "below/.a.12.part", "below/a", "below/deep", "below/deep/.a.12.part"]
    remove_leftovers(tmp_path, below=True)
    assert names(tmp_path) == ["below", "below/a", "below/deep"]


def test_links_and_folders_with_such_names_are_left_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / ".a.12.part").write_text("somebody's")
    folder = tmp_path / "folder"
    (folder / ".b.12.part").mkdir(parents=True)
    (folder / ".c.12.part").symlink_to(outside / ".a.12.part")
    (folder / "linked").symlink_to(outside)
    before = names(tmp_path)
    remove_leftovers(folder, below=True)
    assert names(tmp_path) == before


def start(code: str, folder: Path) -> subprocess.Popen[str]:
    """Start a process that runs code and then waits."""
    lines = f"""
import sys
from pathlib import Path
from pfge.storage.files import *
folder = Path({str(folder)!r})
{code}
    print("ready", flush=True)
    sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", lines], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")
def test_a_temporary_file_is_a_leftover_once_its_process_is_dead(tmp_path: Path) -> None:
    process = start("with atomic_path(folder / 'a') as temporary:", tmp_path)
    (temporary,) = tmp_path.iterdir()
    remove_leftovers(tmp_path)
    assert temporary.exists()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert temporary.exists()
    remove_leftovers(tmp_path)
    assert not temporary.exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="folders are not locked there")
def test_a_second_writer_of_a_folder_waits_for_the_first(tmp_path: Path) -> None:
    first = start("with only_writer(folder / 'new'):", tmp_path)
    entered = threading.Event()

    def enter() -> None:
        with only_writer(tmp_path / "new"):
            entered.set()

    second = threading.Thread(target=enter, daemon=True)
    second.start()
    assert not entered.wait(0.5)
    first.communicate("", timeout=PATIENCE)
    assert entered.wait(PATIENCE)
    second.join(PATIENCE)
