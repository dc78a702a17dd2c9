"""Texts from files, for a terminal."""

import json
from typing import Any


def printable(text: str) -> str:
    r"""Return a text in which no character can steer a terminal: such characters are shown as escapes.

    >>> print(printable("a\x1b[2J"))
    a\x1b[2J
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


LONGEST_MESSAGE = 2000


def short_message(text: str) -> str:
    """Return a printable message without its middle if a file that somebody made has made it very long.

    >>> short_message("a" * 3000).strip("a")
    ' [1,000 characters are left out] '
    """
    shown = printable(text)
    if len(shown) <= LONGEST_MESSAGE:
        return shown
    half = LONGEST_MESSAGE // 2
    return f"{shown[:half]} [{len(shown) - 2 * half:,} characters are left out] {shown[-half:]}"


def printable_json(value: Any) -> str:
    r"""Return a value as JSON in which no character can steer a terminal: such characters are escaped.

    >>> print(printable_json({"caf\u00e9": "a\x1b\x7f\u202e"}))
    {"café": "a\u001b\u007f\u202e"}
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def show_bytes(count: int) -> str:
    """Return a size for people."""
    for unit, size in (("B", 1), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        shown = f"{count / size:.3g}"
        if float(shown) < 1000:  # as rounded: 999,600 bytes are 1 MB
            return f"{shown} {unit}"
    return f"{count / 1e12:.3g} TB"
