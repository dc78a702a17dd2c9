"""No mistake in an argument of any command ends in a traceback."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from pfge.cli.main import COMMANDS, main
from tests.cli.captured import Captured
from tests.cli.every_command import ALL, PFGE

INPUTS = (".", PFGE, "digit.png", "seed-1/w0.safetensors")
OUTPUTS = ("small", "seen", "out.pt2", "mean", "pool")
MISSING = "no/such/place"
# A file, folders of other kinds, a path that no system has, and places that nobody may write to.
MISTAKEN_PATHS = (MISSING, "digit.png", "seed-1", "empty", "no\0path", "x" * 300, "/proc/out")
MISTAKEN_SETTINGS = ("nosuch.key=1", "data.batch_size=0", "data.batch_size=many", "data.batch_size")
MISTAKEN_NUMBERS = ("many", "nan", "-1", "1e400")


def actions_of(name: str) -> list[argparse.Action]:
    parser = argparse.ArgumentParser()
    (command,) = [command for command in COMMANDS if command.name == name]
    command.add_arguments(parser)
    return parser._actions


def mistakes_of(name: str) -> Iterator[tuple[list[str], bool]]:
    """Yield arguments with one mistake each, and whether the command must refuse them.

    Some mistakes are harmless: --out may be an existing file, and a seed may be negative.
    """
    arguments = ALL[name]
    for place, argument in enumerate(arguments):
        if argument in (*INPUTS, *OUTPUTS):
            for wrong in MISTAKEN_PATHS:
                is_read = argument in INPUTS and arguments[place - 1 : place] != ["--out"]
                yield [*arguments[:place], wrong, *arguments[place + 1 :]], is_read and wrong == MISSING
    for action in actions_of(name):
        flag = action.option_strings[-1] if action.option_strings else ""
        if flag == "--set":
            yield from (([*arguments, "--set", wrong], True) for wrong in MISTAKEN_SETTINGS)
        elif flag and action.type in (int, float) and action.nargs is None:
            yield from (([*arguments, f"{flag}={wrong}"], wrong == "many") for wrong in MISTAKEN_NUMBERS)
        elif flag and action.type is Path:
            yield from (([*arguments, flag, wrong], False) for wrong in MISTAKEN_PATHS)


SLOW = ("export", "compress", "connect", "report", "evaluate", "cascade", "compare", "formats", "views")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in ALL]
)
def test_a_mistake_in_an_argument_is_one_line(
    copied_run: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (copied_run / "empty").mkdir()
    wrong = []
    for arguments, must_be_refused in mistakes_of(name):
        try:
            code = main([name, *arguments])
        except SystemExit as ended:
            code = ended.code
        except Exception as error:
            code = repr(error)
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pfge: error: ")]
        is_refused = (code, len(errors)) == (2, 1)
        if not is_refused and (must_be_refused or code not in (0, 1) or errors):
            wrong.append((arguments, code, errors))
    assert wrong == []
