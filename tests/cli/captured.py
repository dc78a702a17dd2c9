"""What a command printed: its error, its words, the cells of its tables."""

import pytest

from pfge.cli.main import main

Captured = pytest.CaptureFixture[str]


def only_error(captured: Captured) -> str:
    """Return the one line that the command printed about an error; progress may stand before it."""
    printed = captured.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    (line,) = [line for line in printed.err.splitlines() if line.startswith("pfge: ")]
    assert printed.err.endswith(line + "\n")
    return line.removeprefix("pfge: error: ")


def squeezed(text: str) -> str:
    """Return a text without white space: where lines are wrapped depends on the length of folders' names."""
    return "".join(text.split())


def refused(captured: Captured, arguments: list[str]) -> str:
    assert main(arguments) == 2
    return only_error(captured)


def cells(printed: str) -> list[list[str]]:
    """Return the cells of printed tables."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
