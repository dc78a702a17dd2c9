"""Functions of the user, named in a config as package.module:function."""

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
        name: The function, written `package.module:function`.
        what: Purpose of the function for errors, such as "model".

    Raises:
        ValueError: The function cannot be imported or is not callable; memory errors pass through.
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
            f"{what} {name!r} must be a function, got {type(function).__name__}; name another"
        )

    # By default, `updated` would copy the attributes of a class.
    @functools.wraps(function, updated=())
    def call(*arguments: Any, **options: Any) -> Any:
        with _current_folder_importable():  # a function may import its module's neighbors when it is called
            return function(*arguments, **options)

    return call


def in_one_line(error: Exception) -> str:
    """Return the type of an error of the user's code, and the first line of its message."""
    reason = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is a lack of memory rather than a mistake in code."""
    # torch has an error class for devices only; the CPU allocator raises a RuntimeError.
    words = ("not enough memory", "out of memory", "allocate memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


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
