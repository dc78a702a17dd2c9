"""What `verify` says of whole, damaged and foreign files."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from pfge import Ensemble, StorageError, save_checkpoint
from pfge.lab.run.verification import CheckedFile, verify
from pfge.packed import PackSettings, pack_members
from pfge.storage.files import read_json_object
from tests.lab.tiny import run, tiny
from tests.toy_members import make_members
from tests.toys import make_mlp


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verified") / "run"
    run(tiny("ensemble.methods=['SWA','PFGE']"), folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def states(found: list[CheckedFile]) -> Counter[str]:
    return Counter(file.state for file in found)


def files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and file.name != ".lock"]


def flip(path: Path, place: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= bit
    path.write_bytes(data)


def test_every_file_that_a_comparison_writes_is_covered(folder: Path) -> None:
    found = verify(folder)
    assert states(found) == {"whole": len(files(folder))}
    assert {file.path for file in found} == {*files(folder)}


def test_damage_of_any_file_is_found_where_it_is(folder: Path) -> None:
    for file in files(folder):
        before = file.read_bytes()
        flip(file, len(before) // 2)
        damaged = {found.path for found in verify(folder) if found.state == "damaged"}
        # A file and its record do not say which of them is damaged.
        assert file in damaged or file.with_name(file.name.removesuffix(".sha256")) in damaged, file
        file.write_bytes(before)


def test_a_missing_file_is_damage(folder: Path) -> None:
    (folder / "seed-1" / "w0.safetensors").unlink()
    next(iter((folder / "seed-1" / "ensembles" / "PFGE").glob("member-*"))).unlink()
    assert sorted(file.path.name.split("-")[0] for file in verify(folder) if file.state == "damaged") == [
        "member",
        "w0.safetensors.sha256",
    ]


def test_what_older_versions_wrote_is_not_covered(folder: Path) -> None:
    (folder / "seed-1" / "w0.safetensors.sha256").unlink()
    config = folder / "config.toml"
    config.write_text(config.read_text().partition("\n")[2])
    results = folder / "results.jsonl"
    first, rest = results.read_text().split("\n", 1)
    results.write_text(first.partition(', "content_sha256"')[0] + "}\n" + rest)
    (folder / "report.html").write_text("<html>")
    reasons = {file.path.name: file.reason for file in verify(folder) if file.state == "not covered"}
    assert reasons == {
        "w0.safetensors": "w0.safetensors.sha256 is missing",
        "config.toml": "the file does not state a SHA-256, like files of older versions of pfge",
        "results.jsonl": "the file does not state a SHA-256, like files of older versions of pfge: line 1",
        "report.html": "pfge does not record a SHA-256 of this file",
    }
    assert not states(verify(folder))["damaged"]


def test_lines_without_a_record_are_not_covered(folder: Path) -> None:
    (folder / "results.lines.json").unlink()
    (found,) = [file for file in verify(folder) if file.state != "whole"]
    reason = "results.lines.json is missing, so missing lines are not noticed"
    assert found == CheckedFile(folder / "results.jsonl", "not covered", reason)


@pytest.mark.parametrize("packed", [False, True])
def test_an_ensemble_and_its_files(tmp_path: Path, packed: bool) -> None:
    members = make_members()
    given = pack_members(members, 3, PackSettings()) if packed else members
    Ensemble(given, make_mlp).save(tmp_path / "saved")
    assert states(verify(tmp_path / "saved")) == {"whole": 2 if packed else 4}
    manifest = read_json_object(tmp_path / "saved" / "manifest.json")
    named = manifest["file"] if packed else manifest["members"][0]["file"]
    flip(tmp_path / "saved" / named, -1)
    (damaged,) = (file for file in verify(tmp_path / "saved") if file.state == "damaged")
    assert damaged.path.name == named
    assert "it is damaged" in damaged.reason


def test_a_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "run.checkpoint"
    save_checkpoint(file, {"iteration": 3})
    assert verify(file) == [CheckedFile(file, "whole")]
    shutil.copy(file, tmp_path / "run.safetensors")
    assert verify(tmp_path / "run.safetensors") == [CheckedFile(tmp_path / "run.safetensors", "whole")]
    flip(file, -5)
    assert states(verify(file)) == {"damaged": 1}


def test_nothing_to_verify_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"missing does not exist"):
        verify(tmp_path / "missing")
