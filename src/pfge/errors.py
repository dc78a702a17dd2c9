"""The root of all errors that pfge raises on purpose: a rule, the value that breaks it, and the remedy.

An error of any other class is a fault of the program. The `pfge` command prints these in one line, and shows
a traceback for all others.
"""


class PfgeError(Exception):
    """Something that the caller can change: an argument, a file, a setting, the order of calls.

    Each error is also of the built-in class that Python would use, so `except ValueError` catches an
    `InvalidValueError`.

    Example:
        >>> import pfge
        >>> try:
        ...     pfge.Triangular(cycle=0, low=0.1, high=0.2)
        ... except pfge.PfgeError as error:
        ...     print(error)
        cycle must be at least 1 iteration, got 0
    """


class InvalidValueError(PfgeError, ValueError):
    """An argument, a setting or the content of a file that breaks a rule."""


class InvalidTypeError(PfgeError, TypeError):
    """An argument of a kind that cannot be used here."""


class MisuseError(PfgeError, RuntimeError):
    """A call at the wrong time, such as a step outside of `before_update()` and `after_update()`."""
