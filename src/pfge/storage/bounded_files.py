"""Read small files of strangers: regular files alone, and no more of them than a limit."""

import os
import stat
from pathlib import Path

LIMIT = 64_000_000
"""Bytes of a text file that is read; a run's results have a few kilobytes a line."""


class UnreadableFileError(OSError):
    """A file that is not read because it is too large, or a pipe, a device or a folder."""


def read_bounded(path: Path, limit: int = LIMIT) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        FileNotFoundError: There is none.
        UnreadableFileError: It is of another kind, which could be endless, or larger than the limit.
    """
    # Without O_NONBLOCK, to open a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableFileError(f"{path} must be a regular file, but is a pipe, a device or a folder")
        if found.st_size > limit:
            raise UnreadableFileError(
                f"{path} must have at most {limit:,} bytes, but has {found.st_size:,}; it may be another file"
            )
        with os.fdopen(os.dup(descriptor), "rb") as file:
            data = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(data) > limit:  # it grows while it is read
        raise UnreadableFileError(f"{path} must have at most {limit:,} bytes, but has more")
    return data
