"""Locks on files, which end with the process that holds them, however it ends."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor

from pfge.storage.files import StorageError

READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
"""The errors of writing to what may only be read."""
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""The errors of file systems that have no locks."""
_HELD: set[int] = set()
"""The locks of this process."""


def _leave_locks() -> None:
    """Close the locks in a forked process, such as one that reads data: it may outlive a killed parent."""
    while _HELD:
        os.close(_HELD.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


@contextmanager
def hold_lock(file: Path, message: str, *, patience: float = 0) -> Iterator[None]:
    """Hold the lock of a file while the context lasts.

    Args:
        file: Made if it is missing. A link is refused.
        message: Of the error if another process holds the lock.
        patience: Seconds to wait for that process.

    Raises:
        StorageError: Another process holds it, or the file system has no locks.
    """
    lock = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        deadline = time.monotonic() + patience
        while not _take(lock, file):
            if time.monotonic() >= deadline:
                raise StorageError(message)
            time.sleep(0.05)
        _HELD.add(lock)
        yield
    finally:
        _HELD.discard(lock)
        os.close(lock)


def _take(lock: int, file: Path) -> bool:
    try:
        return lock_descriptor(lock, blocking=False)
    except OSError as error:
        raise StorageError(
            f"{file.parent} must be on a file system with locks, but {file.name} cannot be locked: "
            f"{error.strerror}; use a folder on a local disk, or mount the file system with locks (flock)"
        ) from None


def is_locked(file: Path) -> bool:
    """Return whether a process holds the lock of a file, as far as this user may know."""
    try:
        return _is_locked(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return False
        if error.errno not in READ_ONLY:
            raise
    with suppress(OSError):  # on network file systems, only those who may write can lock
        return _is_locked(file, os.O_RDONLY)
    return False


def _is_locked(file: Path, mode: int) -> bool:
    lock = os.open(file, mode)
    try:
        return not lock_descriptor(lock, blocking=False)
    finally:
        os.close(lock)
