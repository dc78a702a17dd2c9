"""Texts from files, for a terminal."""


def printable(text: str) -> str:
    r"""Return a text in which no character can steer a terminal: such characters are shown as escapes.

    >>> print(printable("a\x1b[2J"))
    a\x1b[2J
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
