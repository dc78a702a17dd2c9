"""Functions of a user's own, named in a config as package.module:function."""

import functools
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def import_function(name: str, what: str) -> Callable[..., Any]:
    """Return a function that the user named; its module may lie in the current folder.

    Args:
        name: As `package.module:function`.
        what: What it is for, such as "model", for the error.

    Raises:
        ValueError: It cannot be imported, or is not a function.
    """
    try:
        with _current_folder_importable():
            function: Any = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{what} {name!r} cannot be imported: {error}; write package.module:function, and run pfge in "
            "the folder that holds it or put that folder on PYTHONPATH"
        ) from error
    if not callable(function):
        raise ValueError(
            f"{what} {name!r} must be a function, got {type(function).__name__}; name another of its module"
        )

    # By default, `updated` would copy the attributes of a class.
    @functools.wraps(function, updated=())
    def call(*arguments: Any, **options: Any) -> Any:
        with _current_folder_importable():  # a function may import its module's neighbors when it is called
            return function(*arguments, **options)

    return call


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
