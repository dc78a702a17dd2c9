"""Functions of a user's own, named in a config as package.module:function."""

import functools
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pfge.errors import InvalidValueError


def import_function(name: str, what: str) -> Callable[..., Any]:
    """Return a function that the user named; its module may lie in the current folder.

    Args:
        name: As `package.module:function`.
        what: What it is for, such as "model", for the error.

    Raises:
        ValueError: It cannot be imported, or is not a function; memory errors are left as they are.
    """
    try:
        with _current_folder_importable():
            function: Any = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidValueError(
            f"{what} {name!r} cannot be imported: {error}; write package.module:function, and run pfge in "
            "the folder that holds it or put that folder on PYTHONPATH"
        ) from error
    except Exception as error:  # of the user's module, such as a SyntaxError
        if is_out_of_memory(error):
            raise
        raise InvalidValueError(
            f"{what} {name!r} cannot be imported: {in_one_line(error)}; correct its module"
        ) from error
    if not callable(function):
        raise InvalidValueError(
            f"{what} {name!r} must be a function, got {type(function).__name__}; name another of its module"
        )

    # By default, `updated` would copy the attributes of a class.
    @functools.wraps(function, updated=())
    def call(*arguments: Any, **options: Any) -> Any:
        with _current_folder_importable():  # a function may import its module's neighbors when it is called
            return function(*arguments, **options)

    return call


def in_one_line(error: Exception) -> str:
    """Return the type of an error of the user's code, and the first line of what it says."""
    reason = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is a lack of memory, and no mistake in any code."""
    # torch has a type of its own for devices only; on the CPU its allocator says so in words.
    words = ("not enough memory", "out of memory", "allocate memory")
    return isinstance(error, MemoryError) or any(said in str(error) for said in words)


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    """Put the current folder at the end of sys.path, so that its files never hide an installed module."""
    folder = str(Path.cwd())
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        if folder in sys.path:  # the user's code may have removed it
            sys.path.remove(folder)
