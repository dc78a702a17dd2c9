"""What the README and the examples show is what happens."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import pfge
from tests.toys import make_batch, make_mlp, make_sgd

ROOT = Path(__file__).parent.parent


def test_the_readme_example_runs_in_a_users_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    model = make_mlp()
    batches = [make_batch(i) for i in range(400)]
    names = {
        "model": model,
        "optimizer": make_sgd(model),
        "batches": batches,
        "cross_entropy": cross_entropy,
        "make_model": make_mlp,
        "train_loader": batches[:5],
        "test_loader": batches[:3],
    }
    exec(compile(code, "README.md", "exec"), names)
    assert names["probabilities"].shape == (48, 3)  # type: ignore[attr-defined]
    assert len(pfge.Ensemble.load(tmp_path / "my-ensemble", make_mlp)) == 2


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


def test_documents_link_to_files_that_exist() -> None:
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_version_is_the_same_everywhere() -> None:
    assert f'version = "{pfge.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"version: {pfge.__version__}" in (ROOT / "CITATION.cff").read_text()
