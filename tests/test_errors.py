"""Errors that pfge raises on purpose have one root, and the command prints only these in one line."""

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import pfge
from pfge.cli.main import COMMANDS, main
from pfge.errors import InvalidTypeError, InvalidValueError, MisuseError

SOURCE = Path(__file__).parent.parent / "src" / "pfge"
WITHIN = {  # such an error would be a fault of the program
    "RuntimeError": {"averages.py", "compare.py"},
    "TypeError": {"distillation.py", "encode.py", "manifest.py", "typed.py"},
}


@pytest.mark.parametrize(
    ("error", "built_in"),
    [(InvalidValueError, ValueError), (InvalidTypeError, TypeError), (MisuseError, RuntimeError)],
)
def test_each_error_is_also_of_the_built_in_class(error: type[Exception], built_in: type[Exception]) -> None:
    assert issubclass(error, pfge.PfgeError)
    assert issubclass(error, built_in)


def test_no_module_raises_a_plain_error_for_a_mistake_of_the_caller() -> None:
    for file in SOURCE.rglob("*.py"):
        raised = {
            node.exc.func.id
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Raise)
            and isinstance(node.exc, ast.Call)
            and isinstance(node.exc.func, ast.Name)
        }
        assert "ValueError" not in raised, file
        for name, files in WITHIN.items():
            assert name not in raised or file.name in files, file


def let_status_run(monkeypatch: pytest.MonkeyPatch, run: Callable[[object], int]) -> None:
    changed = [replace(command, run=run) if command.name == "status" else command for command in COMMANDS]
    monkeypatch.setattr("pfge.cli.main.COMMANDS", tuple(changed))


def test_the_command_shows_the_traceback_of_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: object) -> int:
        raise ValueError("a fault of the program")

    let_status_run(monkeypatch, run)
    with pytest.raises(ValueError, match="a fault of the program"):
        main(["status", "runs"])


def test_the_command_prints_an_error_of_the_caller_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: object) -> int:
        raise MisuseError("call begin()\nfirst")

    let_status_run(monkeypatch, run)
    assert main(["status", "runs"]) == 2
    assert capsys.readouterr().err == "pfge: error: call begin() first\n"
