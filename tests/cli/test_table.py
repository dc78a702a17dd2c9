"""`pfge table`: Markdown of what can be read, a warning for each line that cannot, and no traceback."""

import json
import sys
import warnings
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from pfge.cli.main import main
from tests.cli.captured import Captured, refused
from tests.reports.made_run import make_run, result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", examples=0)


def printed(captured: Captured, *arguments: str) -> tuple[str, list[str]]:
    """Return what a command printed and its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main([*arguments]) == 0
    found = captured.readouterr()
    assert "Traceback" not in found.err
    return found.out, [line.removeprefix("pfge: warning: ") for line in found.err.splitlines()]


def test_the_tables_and_where_they_come_from_are_printed(capsys: Captured, folder: Path) -> None:
    out, _ = printed(capsys, "table", str(folder))
    assert "| PFGE | 4 | 4,000,000 | 4x | 93.75 ± 0.25 | 0.2150 ± 0.0050 | 2.00 ± 0.00 ▲ | 400 |" in out
    assert out.splitlines()[-1] == "test set, seeds 1, 2; `pfge compare made.toml`; torch 2.13.0"


def test_characters_that_the_output_does_not_have_are_question_marks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = TextIOWrapper(BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["table", str(folder)]) == 0
    assert b"| 2.00 ? 0.00 ? | 400 |" in out.buffer.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("environment", ["{}", '{"command": ["x"], "threads": {}}', "[]", "{", "[" * 10**5])
def test_an_environment_that_does_not_say_is_no_reason_to_fail(
    capsys: Captured, folder: Path, environment: str
) -> None:
    (folder / "environment.json").write_text(environment)
    out, _ = printed(capsys, "table", str(folder))
    assert out.splitlines()[-1] == "test set, seeds 1, 2"
    assert printed(capsys, "report", str(folder))[0] == f"Report: {folder / 'report.html'}\n"


HOSTILE: list[Any] = [
    *({}, True, None, 7, "text", [[]]),
    result("PFGE", 3) | {"bytes": 10**400},
    result("PFGE", 3) | {"test": {"accuracy": 0.9, "nll": float("-inf"), "ece": 0.1}},
    result("PFGE", 3) | {"method": "\ud800"},
    result("PFGE", 3) | {"version": 2},
    result("PFGE", 2),  # there already
]


def test_lines_that_are_no_results_are_named_and_left_out(capsys: Captured, folder: Path) -> None:
    before, _ = printed(capsys, "table", str(folder))
    with (folder / "results.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in HOSTILE)
        file.write("[" * 100_000 + "\n")
    out, said = printed(capsys, "table", str(folder))
    assert out == before
    assert len(said) == len(HOSTILE) + 1
    assert said[0].startswith(
        "line 15 of results.jsonl is left out: seed is missing; it may come from an older"
    )
    assert said[-2] == "line 25 of results.jsonl is left out: it repeats line 14; remove that line"
    for kind in ("html", "markdown", "latex", "csv"):
        where = ["--out", str(folder / "tables")] if kind == "csv" else []
        assert len(printed(capsys, "report", str(folder), "--format", kind, *where)[1]) == len(said)
    assert "Line 25 of results.jsonl is left out" in (folder / "report.html").read_text()


def test_numbers_at_the_edge_of_floats_are_shown_or_refused(capsys: Captured, folder: Path) -> None:
    with (folder / "results.jsonl").open("a") as file:
        for seed, value in ((3, 1e300), (4, -1e300), (5, 1e99), (6, -1e99)):
            odd = {"accuracy": value, "nll": value, "ece": value}
            file.write(json.dumps(result("SWA", seed) | {"test": odd}) + "\n")
    for command in (["table"], ["report"], ["report", "--format", "latex"]):
        _, said = printed(capsys, command[0], str(folder), *command[1:])
        assert [text[:7] for text in said] == ["line 15", "line 16"]


def test_a_run_without_such_results_is_one_line(capsys: Captured, folder: Path) -> None:
    assert refused(capsys, ["table", str(folder), "--part", "validation"]) == (
        f"{folder} has no validation results yet; run pfge compare --out {folder}"
    )
    assert refused(capsys, ["table", str(folder / "none")]).startswith(f"{folder / 'none'} holds no run")


def test_texts_of_a_run_do_not_steer_the_terminal_or_end_their_code(capsys: Captured, folder: Path) -> None:
    command = "pfge \x1b[2J ` ![x](http://a.b/c.png) \ud800"
    (folder / "environment.json").write_text(json.dumps({"command": command}))
    out, _ = printed(capsys, "table", str(folder))
    assert out.endswith("; `pfge \\x1b[2J ' ![x](http://a.b/c.png) \\ud800`\n")
    printed(capsys, "report", str(folder))
    assert "\\ud800" in (folder / "report.html").read_text()


def test_a_method_named_as_a_path_is_not_followed(capsys: Captured, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "outside"
    with (folder / "results.jsonl").open("a") as file:
        file.write(json.dumps(result("PFGE", 3) | {"method": str(path)}) + "\n")
    _, said = printed(capsys, "table", str(folder))
    assert "method must be a name" in said[0]
