"""An ensemble on disk: what is written is what is read, and nothing half-written or foreign is."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pfge import Ensemble, StorageError
from pfge.calibration import Temperatures
from pfge.storage import ensemble_folder
from pfge.storage.files import read_json_object, write_json
from pfge.tasks import MultiLabel
from tests.resealed import edit_manifest
from tests.toy_members import X, expected, make_members
from tests.toys import assert_same_weights, make_mlp


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Ensemble(make_members(), make_mlp, method="PFGE", iterations=[10, 20, 30]).save(tmp_path / "saved")
    return tmp_path / "saved"


def member_files(folder: Path) -> list[Path]:
    entries = json.loads((folder / "manifest.json").read_text())["members"]
    return [folder / entry["file"] for entry in entries]


def test_a_loaded_ensemble_is_the_saved_one(folder: Path) -> None:
    loaded = Ensemble.load(folder, make_mlp)
    for one, two in zip(loaded.members, make_members(), strict=True):
        assert_same_weights(one, two)
    assert (loaded.method, loaded.iterations) == ("PFGE", [10, 20, 30])
    torch.testing.assert_close(loaded.predict(X), expected().mean(0))


def test_the_manifest_says_what_is_there(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["format"] == "pfge-ensemble"
    assert manifest["version"] == 1
    assert manifest["model"] == "tests.toys:make_mlp"
    assert [member["iteration"] for member in manifest["members"]] == [10, 20, 30]


def test_saving_again_replaces_the_ensemble_and_leaves_no_old_files(folder: Path) -> None:
    Ensemble(make_members(2), make_mlp).save(folder)
    assert len(Ensemble.load(folder, make_mlp)) == 2
    assert len(list(folder.iterdir())) == 3


def test_a_crash_while_saving_leaves_the_old_ensemble(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("pfge.storage.ensemble_folder.write_json", fail)
    with pytest.raises(OSError, match="No space left"):
        Ensemble(make_members(1), make_mlp).save(folder)
    loaded = Ensemble.load(folder, make_mlp)
    assert len(loaded) == 3
    torch.testing.assert_close(loaded.predict(X), expected().mean(0))


@pytest.mark.parametrize(
    "left",
    [
        "member-0123456789abcdef.safetensors",
        "packed-0123456789abcdef.safetensors",
        ".manifest.json.77.part",
        ".member.0f3a99c1.part",
        "member.draft",
        ".tmpAb3dEf",
    ],
)
def test_what_a_killed_process_left_does_not_stop_the_next_save(tmp_path: Path, left: str) -> None:
    (tmp_path / left).write_bytes(b"half")
    Ensemble(make_members(), make_mlp).save(tmp_path)
    torch.testing.assert_close(Ensemble.load(tmp_path, make_mlp).predict(X), expected().mean(0))
    assert len(list(tmp_path.iterdir())) == 4


def test_a_manifest_never_names_a_file_that_another_writer_removed(tmp_path: Path) -> None:
    """On a file system where writers of a folder cannot wait for each other."""
    first = ensemble_folder.EnsembleFolder(tmp_path)
    entries = [first.write(make_members()[0], 1)]
    Ensemble(make_members()[1:], make_mlp).save(tmp_path)
    with pytest.raises(StorageError, match="was removed by another writer of the folder; give each its own"):
        first.commit(entries)
    assert len(Ensemble.load(tmp_path, make_mlp)) == 2


def test_the_size_of_the_files_is_known_before_they_are_written(folder: Path) -> None:
    ensemble = Ensemble.load(folder, make_mlp)
    assert ensemble.file_bytes() == sum(file.stat().st_size for file in folder.iterdir())
    twice = Ensemble([*make_members(), make_members()[0]], make_mlp)
    twice.save(folder)
    assert len(list(folder.iterdir())) == 4  # equal members are one file
    assert twice.file_bytes() == sum(file.stat().st_size for file in folder.iterdir())


def test_saving_among_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("x")
    with pytest.raises(StorageError, match="holds other files and no ensemble; choose"):
        Ensemble(make_members(), make_mlp).save(tmp_path)


def test_an_ensemble_read_from_a_folder_can_be_saved_over_itself(folder: Path) -> None:
    Ensemble.load(folder, make_mlp).last(1).save(folder)
    assert_same_weights(Ensemble.load(folder, make_mlp).members[0], make_members()[2])


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere must be an ensemble folder, but no such folder exists"):
        Ensemble.load(tmp_path / "nowhere", make_mlp)


def test_a_foreign_folder(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(StorageError, match=r"is not an ensemble folder: it has no manifest\.json"):
        Ensemble.load(tmp_path, make_mlp)


def test_a_manifest_of_another_format_or_version(folder: Path) -> None:
    edit_manifest(folder, version=99)
    with pytest.raises(
        StorageError, match=r"manifest\.json must have format version 1, found 99; update pfge"
    ):
        Ensemble.load(folder, make_mlp)
    edit_manifest(folder, format="other")
    with pytest.raises(StorageError, match="must have format 'pfge-ensemble', found 'other'"):
        Ensemble.load(folder, make_mlp)


def test_a_truncated_manifest(folder: Path) -> None:
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text[: len(text) // 2])
    with pytest.raises(StorageError, match=r"manifest\.json must be JSON, but .*truncated"):
        Ensemble.load(folder, make_mlp)


def test_a_missing_member(folder: Path) -> None:
    file = member_files(folder)[1]
    file.unlink()
    with pytest.raises(StorageError, match=f"{file.name} is missing, but manifest.json names it as member 2"):
        Ensemble.load(folder, make_mlp)


def test_a_truncated_member(folder: Path) -> None:
    file = member_files(folder)[0]
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(
        StorageError, match=f"{file.name} must have {size} bytes, found {size - 10}: it is trunc"
    ):
        Ensemble.load(folder, make_mlp)


def test_a_corrupted_member(folder: Path) -> None:
    file = member_files(folder)[2]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(StorageError, match=f"{file.name} must have SHA-256 .*, found .*: it is damaged"):
        Ensemble.load(folder, make_mlp)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", ".."])
def test_a_manifest_cannot_name_files_outside_its_folder(folder: Path, name: str) -> None:
    entry = {"file": name, "iteration": 1, "bytes": 1, "sha256": "0"}
    edit_manifest(folder, members=[entry])
    with pytest.raises(StorageError, match="must give file, bytes, sha256, iteration of each file"):
        Ensemble.load(folder, make_mlp)


def test_members_of_different_shapes_on_disk(folder: Path, tmp_path: Path) -> None:
    Ensemble([make_mlp(classes=5).state_dict()], make_mlp).save(tmp_path / "other")
    other = member_files(tmp_path / "other")[0]
    other.rename(folder / other.name)
    entries = [json.loads((f / "manifest.json").read_text())["members"] for f in (folder, tmp_path / "other")]
    edit_manifest(folder, members=entries[0][:1] + entries[1])
    with pytest.raises(StorageError, match=r"must have the first member's shapes, but differs in \['4.bias'"):
        Ensemble.load(folder, make_mlp)


# Temperatures


def test_temperatures_are_saved_with_the_ensemble(tmp_path: Path) -> None:
    Ensemble(make_members(), make_mlp, temperatures=Temperatures(1.5, (1.0, 0.5, 2.0))).save(tmp_path)
    loaded = Ensemble.load(tmp_path, make_mlp)
    assert loaded.temperatures == Temperatures(1.5, (1.0, 0.5, 2.0))


def test_temperatures_of_labels_are_saved_with_the_ensemble(tmp_path: Path) -> None:
    given = Temperatures((1.5, 0.5, 2.0), ((1.0, 2.0, 3.0),) * 3)
    ensemble = Ensemble(make_members(), make_mlp, task=MultiLabel(), temperatures=given)
    ensemble.save(tmp_path)
    assert Ensemble.load(tmp_path, make_mlp).temperatures == given


def test_weights_of_members_are_saved_with_the_ensemble(tmp_path: Path) -> None:
    given = Temperatures(1.5, weights=(0.5, 0.2, 0.3))
    Ensemble(make_members(), make_mlp, temperatures=given).save(tmp_path)
    assert Ensemble.load(tmp_path, make_mlp).temperatures == given


def test_a_manifest_names_no_weights_if_there_are_none(folder: Path) -> None:
    assert "member_weights" not in read_json_object(folder / "manifest.json")


@pytest.mark.parametrize(
    "weights",
    [[0.5, 0.2, 0.2], [0.5, 0.5], [1.0, 1.0, -1.0], [0.5, 0.5, 0.0], 1.0, ["0.5", "0.2", "0.3"], []],
)
def test_weights_that_cannot_be_are_refused(folder: Path, weights: Any) -> None:
    edit_manifest(folder, member_weights=weights)
    with pytest.raises(StorageError, match=r"manifest\.json has an invalid `temperature`: .*weight"):
        Ensemble.load(folder, make_mlp)


def test_a_manifest_without_temperatures_has_none(folder: Path) -> None:
    manifest = read_json_object(folder / "manifest.json")
    del manifest["temperature"], manifest["member_temperatures"]
    write_json(folder / "manifest.json", manifest)
    loaded = Ensemble.load(folder, make_mlp)
    assert loaded.temperatures == Temperatures()


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0},
        {"temperature": "1"},
        {"temperature": float("nan")},
        {"member_temperatures": [1.0]},
        {"member_temperatures": [1.0, -1.0, 1.0]},
        {"member_temperatures": 2.0},
        {"temperature": 1e308 * 10},
        {"temperature": []},
        {"temperature": [1.0, 0.0]},
        {"temperature": [1.0, float("inf")]},
        {"temperature": [1.0, [1.0]]},
        {"temperature": {"0": 1.0}},
        {"member_temperatures": [1.0, [1.0, "2"], 1.0]},
    ],
)
def test_temperatures_that_cannot_be_are_refused(folder: Path, changes: dict[str, Any]) -> None:
    edit_manifest(folder, **changes)
    with pytest.raises(StorageError, match=r"manifest\.json has an invalid `temperature`: "):
        Ensemble.load(folder, make_mlp)
