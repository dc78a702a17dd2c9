"""Locks on files: who holds one can be asked by those who may only read the file."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pfge.lab.run import folder
from pfge.lab.run.folder import hold_lock, is_locked
from pfge.storage.files import StorageError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / ".lock"
    path.touch()
    return path


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that refuses to open files in other ways than those given."""
    opened = os.open

    def only(*ways: int) -> None:
        def refuse_others(path: Any, flags: int, *rest: Any) -> int:
            if flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR) not in ways:
                raise PermissionError(13, "Permission denied", str(path))
            return opened(path, flags, *rest)

        monkeypatch.setattr(os, "open", refuse_others)

    return only


def test_a_lock_is_held_while_its_context_lasts(file: Path) -> None:
    with hold_lock(file, "in use"):
        assert is_locked(file)
    assert not is_locked(file)


def test_a_missing_file_is_not_locked(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / ".lock")


def test_those_who_may_only_read_see_who_holds_a_lock(file: Path, allow: Callable[..., None]) -> None:
    with hold_lock(file, "in use"):
        allow(os.O_RDONLY)
        assert is_locked(file)
    assert not is_locked(file)


def test_a_lock_that_may_not_be_read_is_not_known_to_be_held(file: Path, allow: Callable[..., None]) -> None:
    allow()
    assert not is_locked(file)


def test_a_lock_that_needs_writing_is_not_known_to_be_held(
    file: Path, allow: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise OSError(9, "Bad file descriptor")  # as of network file systems, for a file that is only read

    allow(os.O_RDONLY)
    monkeypatch.setattr(folder, "lock_descriptor", refuse)
    assert not is_locked(file)


def test_a_file_system_without_locks_is_named_with_what_to_do(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(folder, "lock_descriptor", refuse)
    with pytest.raises(StorageError) as caught, hold_lock(file, "in use"):
        pass
    assert str(caught.value) == (
        f"{file.parent} must be on a file system with locks, but .lock cannot be locked: Function not "
        "implemented; use a folder on a local disk, or mount the file system with locks (flock)"
    )
    assert not is_locked(file)  # nobody can hold it
