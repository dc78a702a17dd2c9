"""What the README, the pages in docs/ and the examples show is what happens."""

import re
import runpy
import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import pfge
from pfge.cli.main import COMMANDS, main
from tests.readme_blocks import DOCS, DOCUMENTS, README, ROOT, name_of, read_blocks
from tests.toys import make_batch, make_mlp, make_sgd

FOLDERS = (DOCS, DOCS / "api", DOCS / "methods", DOCS / "trainers")
DOCUMENTS += sorted(path for folder in FOLDERS for path in folder.glob("*.md"))


def users_names() -> dict[str, Any]:
    """The names that the pages take for granted: a model, its loop, its data and an ensemble of it."""
    model = make_mlp()
    batches = [make_batch(i) for i in range(800)]
    trained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    members = [
        {name: tensor * (1 + k / 100) if "weight" in name else tensor for name, tensor in trained.items()}
        for k in range(4)
    ]
    return {
        "model": model,
        "optimizer": make_sgd(model),
        "batches": batches,
        "cross_entropy": cross_entropy,
        "make_model": make_mlp,
        "train_loader": batches[:5],
        "validation_loader": batches[5:10],
        "test_loader": batches[:3],
        "ensemble": pfge.Ensemble(members, make_mlp),
    }


# Pages of trainers need these and their data: tests/integrations/test_trainers_page.py runs them.
WITH_CODE = [d for d in DOCUMENTS if read_blocks(d, "python") and d.parent.name != "trainers"]


@pytest.mark.slow
@pytest.mark.parametrize("document", WITH_CODE, ids=name_of)
def test_the_code_of_a_page_runs(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = users_names()
    for number, code in enumerate(read_blocks(document, "python"), 1):
        exec(compile(code, f"{document.name}, block {number}", "exec"), names)
    if "probabilities" in names:
        assert names["probabilities"].shape == (48, 3)
    capsys.readouterr()


def test_the_readme_makes_an_ensemble_and_compresses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = users_names()
    (code,) = read_blocks(README, "python")
    exec(compile(code, "README.md", "exec"), names)
    assert len(names["ensemble"]) == 4
    assert len(pfge.Ensemble.load(tmp_path / "my-ensemble", make_mlp)) == 4
    assert names["small"].nbytes < names["ensemble"].nbytes


def without_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands read their arguments and do nothing."""
    idle = tuple(replace(command, run=lambda _: 0) for command in COMMANDS)
    monkeypatch.setattr("pfge.cli.main.COMMANDS", idle)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_the_commands_of_a_page_are_understood(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_work(monkeypatch)
    for block in read_blocks(document, "bash"):
        for line in block.splitlines():
            program, *arguments = shlex.split(line, comments=True) or [""]
            if program == "pfge":
                assert main(arguments) == 0, line


CURRENT = [document for document in DOCUMENTS if document.name != "CHANGELOG.md"]  # which names old commands


def named_in_prose(document: Path, program: str) -> list[list[str]]:
    """Return the arguments of a program wherever the text of a page names it with some."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    return [shlex.split(found) for found in re.findall(rf"`{program} ([^`]+)`", text)]


@pytest.mark.parametrize("document", CURRENT, ids=name_of)
def test_the_commands_that_a_page_names_are_understood(
    document: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_work(monkeypatch)

    def is_understood(name: str, arguments: list[str]) -> bool:
        # What a command is about may be left out in prose, its options not.
        for left_out in ([], ["X"], ["X", "Y"]):
            try:
                return main([name, *left_out, *arguments]) == 0
            except SystemExit:
                capsys.readouterr()
        return False

    names = {command.name for command in COMMANDS}
    for name, *arguments in named_in_prose(document, "pfge"):
        if name not in ("COMMAND", "--traceback", "--completion"):
            assert name in names, f"{document.name} names pfge {name}"
            assert not arguments or is_understood(name, arguments), f"pfge {name} {shlex.join(arguments)}"


@pytest.mark.parametrize("document", CURRENT, ids=name_of)
def test_the_programs_that_a_page_names_exist(document: Path) -> None:
    for first, *others in named_in_prose(document, "python"):
        if first == "-m":
            assert find_spec(others[0]), f"{document.name} names python -m {others[0]}"
        else:
            assert (ROOT / first).is_file(), f"{document.name} names python {first}"


def test_a_page_lists_every_command() -> None:
    page = (DOCS / "commands.md").read_text()
    listed = re.findall(r"^\| `pfge (\S+)` \|", page, re.MULTILINE)
    assert listed == [command.name for command in COMMANDS]
    assert "--trust-code" in page


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) < 120


def test_the_example_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        runpy.run_path(str(ROOT / "examples" / "own_loop.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "4 members" in printed
    accuracy = float(re.findall(r"accuracy ([\d.]+)%", printed)[0])
    assert accuracy > 90


def test_the_example_needs_one_import_three_constructors_and_two_calls() -> None:
    lines = (ROOT / "examples" / "own_loop.py").read_text().splitlines()
    loop = lines[: next(i for i, line in enumerate(lines) if "ensemble =" in line)]
    assert sum("pfge." in line for line in loop) == 3
    assert sum("trajectory." in line for line in loop) == 2


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_a_page_links_to_files_that_exist(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_version_is_the_same_everywhere() -> None:
    assert f'version = "{pfge.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"version: {pfge.__version__}" in (ROOT / "CITATION.cff").read_text()
