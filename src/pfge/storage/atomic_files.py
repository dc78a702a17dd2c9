"""Files that are never seen half-written, and what a killed process leaves of one.

A file is written under a temporary name, `.NAME.TOKEN.part`, and renamed when its bytes are on disk. Its
writer holds a lock on it, which ends with the process. So a temporary file that can be locked is a leftover,
whichever process, container or machine it was of.
"""

import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]+\.part")
_TEMPORARY_BEFORE = re.compile(r"\.tmp[A-Za-z0-9]{6}|member\.draft")
"""Temporary tensor files as they were named when safetensors wrote them."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; it takes the real name once its bytes are on disk.

    A crash or an error leaves the old file, or none, under the real name. Leftovers of the file are removed.
    """
    for left in _temporary_files_of(path):
        _remove_if_left(left)
    with temporary_file(path.parent, path.name) as temporary:
        yield temporary
        publish(temporary, path)


@contextmanager
def temporary_file(folder: Path, name: str) -> Iterator[Path]:
    """Give the path of a new file to write to, and to `publish`; after an error it is removed."""
    path, descriptor = _create(folder, name)
    try:
        yield path
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def publish(temporary: Path, path: Path) -> None:
    """Give a temporary file the name of another file in its folder, once its bytes are on disk."""
    _flush(temporary)
    temporary.replace(path)
    _flush(path.parent)


def is_leftover(name: str) -> bool:
    """Return whether a file of that name is temporary, and so a leftover once its writer is gone."""
    return any(form.fullmatch(name) for form in (_TEMPORARY, _TEMPORARY_BEFORE))


def remove_leftovers(folder: Path, *, below: bool = False) -> None:
    """Remove temporary files without a living writer from a folder, and from all below it if asked to."""
    for parent, folders, files in os.walk(folder):  # it does not follow links
        for name in filter(is_leftover, files):
            _remove_if_left(Path(parent, name))
        if not below:
            folders.clear()


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, if there is none; its name is on disk when this returns."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on disk, as of files that were made in it or renamed."""
    _flush(path)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Make a folder if there is none, and let one process at a time write to it while the others wait.

    A file system that cannot lock folders lets all of them write.
    """
    make_folder(folder)
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _create(folder: Path, name: str) -> tuple[Path, int]:
    """Return a new temporary file and a descriptor that holds its lock."""
    while True:
        path = folder / f".{name}.{secrets.token_hex(4)}.part"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        # Another process may have taken it for a leftover before it was locked.
        if _lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)


def _temporary_files_of(path: Path) -> list[Path]:
    forms = ((file, _TEMPORARY.fullmatch(file.name)) for file in path.parent.iterdir())
    return [file for file, form in forms if form and form["name"] == path.name]


def _remove_if_left(path: Path) -> None:
    if sys.platform == "win32":  # where no lock tells whether there is a writer
        return
    with suppress(OSError):  # gone by now, a link, a folder, or another user's
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode) and _lock(descriptor):
                path.unlink()
        finally:
            os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Return whether the file is locked for this process from now on; None where files cannot be locked."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
