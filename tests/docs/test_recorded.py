"""A recorded run has the tables of the run, and nothing of the machine that it was made on."""

import json
from pathlib import Path

import pytest
from site_extension import recorded
from site_extension.run_texts import texts_of

from pfge.reports.run import Run
from pfge.storage.files import read_json_object, write_json
from tests.lab.tiny import run as run_experiment
from tests.lab.tiny import tiny

MOST_BYTES = 3_000_000


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    run_experiment(tiny("data.validation_from_test=true", "seeds=[1,2]"), folder)
    environment = read_json_object(folder / "environment.json")
    command = "pfge compare /home/me/configs/x.toml --out /home/me/run --set data.root=/home/me/data/cifar"
    write_json(folder / "environment.json", environment | {"command": command})
    return folder


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.slow
def test_a_recorded_run_is_small_and_has_the_same_tables(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "RECORDED", tmp_path)
    target = recorded.record(finished)
    before, after = texts_of(Run(finished)), texts_of(Run(target))
    before.pop("source")
    assert "/home/me" not in after.pop("source")
    assert after == before
    assert {"methods", "calibration", "differences", "differences-at-T"} <= after.keys()
    assert bytes_of(target) < bytes_of(finished) / 4
    assert not [file for file in target.rglob("*") if file.is_file() and b"/home/me" in file.read_bytes()]
    assert not list(target.rglob("member-*"))


def test_without_scores_there_is_less_to_keep(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "RECORDED", tmp_path)
    target = recorded.record(finished, scores=False)
    assert not list(target.rglob("*.safetensors"))
    assert texts_of(Run(target))["methods"] == texts_of(Run(finished))["methods"]


def test_an_unfinished_run_cannot_be_recorded(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "RECORDED", tmp_path / "recorded")
    lines = (finished / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "results.jsonl").write_text("".join(lines[:-1]))
    (tmp_path / "part" / "config.toml").write_text((finished / "config.toml").read_text())
    with pytest.raises(ValueError, match="must be a finished run"):
        recorded.record(tmp_path / "part")
    assert not (tmp_path / "recorded").exists()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("pfge compare configs/a.toml", "pfge compare configs/a.toml"),
        ("pfge compare code/configs/a.toml --out /tmp/x", "pfge compare configs/a.toml"),
        ("pfge compare --set pretrain.weights=/data/w.pt", "pfge compare --set pretrain.weights=w.pt"),
        ('pfge compare --set seeds=["1"]', "pfge compare --set 'seeds=[\"1\"]'"),
    ],
)
def test_a_command_is_shown_without_folders_and_can_be_copied(command: str, expected: str) -> None:
    assert recorded.without_folders(command) == expected


def test_what_is_recorded_stays_small() -> None:
    assert bytes_of(recorded.RECORDED) < MOST_BYTES


def test_no_recorded_file_names_a_folder_of_a_machine() -> None:
    for folder in filter(Path.is_dir, recorded.RECORDED.iterdir()):
        command = json.loads((folder / "environment.json").read_text())["command"]
        assert " /" not in command
        assert "=/" not in command
