"""The `pfge` commands of the README and the pages work, in the order of a page, on a small run."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from pfge.cli.main import main
from pfge.lab.config.toml import load_experiment
from tests.lab.tiny import run
from tests.made_once import made_once
from tests.readme_blocks import DOCUMENTS, ROOT, name_of, read_blocks

SETTINGS = """
name = "mine"
seeds = [1]
[data]
validation_from_test = true
flip = true
batch_norm_images = 100
[pretrain]
epochs = 0.5
[ensemble]
unit = "iterations"
cycle = 2
period = 4
length = 12
[connect]
unit = "iterations"
length = 2
points = 3
"""
ONLY_UNDERSTOOD = {
    "pfge compare": "takes a minute",
    "pfge compare configs/demo.toml": "make demo runs it",
    "pfge compare configs/demo.toml --out runs/mnist1d": "takes minutes; docs/recorded has what it found",
    "pfge compare a.toml b.toml": "tests/cli/test_compare.py runs several",
    "pfge compare my.toml --launcher ray": "tests/lab/launch/test_ray_tasks.py runs it",
    "pfge compare my.toml --out runs/mine --launcher ray": "as the one before",
    "pfge compare my.toml --launcher ray:10.0.0.1:6379": "needs a cluster",
    "pfge compare configs/paper --launcher slurm": "needs a cluster",
    "pfge compare configs/paper --dry-run": "needs data that cannot be generated",
    "pfge export small ensemble.onnx --config my.toml": "docs/serving exports such an ensemble",
    "pfge evaluate runs/mine/seed-1/ensembles/PFGE --ood cifar100": "needs data that cannot be generated",
    "pfge diagnose runs/mine --set model.name=my_code:make_model": "cli/test_untrusted_runs.py runs it",
}
"""Commands that are not run, by how they begin and end or go on with options; test_readme.py parses all."""
STARTS_A_RUN = ("compare", "pretrain")


def commands_of(document: Path) -> list[str]:
    lines = [line for block in read_blocks(document, "bash") for line in block.splitlines()]
    return [line.partition(" #")[0].strip() for line in lines if line.startswith("pfge ")]


def is_run(command: str) -> bool:
    return not any(re.fullmatch(rf"{re.escape(start)}( --set.*)?", command) for start in ONLY_UNDERSTOOD)


WITH_COMMANDS = [document for document in DOCUMENTS if any(map(is_run, commands_of(document)))]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader has it: settings, pictures, checkpoints, an ensemble and finished runs."""
    return made_once(tmp_path_factory, "reader", make_folder_of_reader)


def make_folder_of_reader(folder: Path) -> None:
    (folder / "my.toml").write_text(SETTINGS)
    for name in ("photo.jpg", "other.png"):
        Image.new("L", (8, 8)).save(folder / name)
    experiment = load_experiment(folder / "my.toml", [])
    for name in ("mine", "other"):
        run(experiment, folder / "runs" / name)
    shutil.copytree(folder / "runs" / "mine" / "seed-1" / "ensembles" / "PFGE", folder / "small")
    w0 = folder / "runs" / "mine" / "seed-1" / "w0.safetensors"
    for name in ("run/a.safetensors", "run/b.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(w0, folder / name)
    for name in ("checkpoint-500", "checkpoint-1000"):
        (folder / name).mkdir()
        shutil.copy(w0, folder / name / "model.safetensors")
    for name in ("a", "b"):
        torch.save({"state_dict": load_file(w0)}, folder / "run" / f"{name}.ckpt")


@pytest.mark.slow
@pytest.mark.parametrize("document", WITH_COMMANDS, ids=name_of)
def test_the_commands_of_a_page_work(
    document: Path,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(finished, tmp_path / "reader")
    for number, command in enumerate(filter(is_run, commands_of(document))):
        _, name, *arguments = shlex.split(command)
        folder = tmp_path / "reader"
        if name in STARTS_A_RUN:  # the run of the pages, from its beginning
            folder = tmp_path / f"new-{number}"
            shutil.copytree(finished, folder, ignore=shutil.ignore_patterns("runs"))
        monkeypatch.chdir(folder)
        expanded = [str(path) for part in arguments for path in _expand(part)]
        if "--distil" in expanded:  # one iteration takes the same path as hundreds
            expanded[expanded.index("--distil") + 1] = "5"
        assert main([name, *expanded]) == 0, f"{command}\n{capsys.readouterr().err}"


def _expand(argument: str) -> list[str | Path]:
    """Return the files of a pattern, as a shell does."""
    return sorted(Path().glob(argument)) if "*" in argument else [argument]


def test_what_is_not_run_is_on_a_page() -> None:
    shown = {command for document in DOCUMENTS for command in commands_of(document)}
    for start in ONLY_UNDERSTOOD:
        assert any(command.startswith(start) for command in shown), f"no page has {start}"
    assert (ROOT / "docs" / "recorded" / "mnist1d" / "results.jsonl").is_file()
