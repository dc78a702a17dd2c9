"""The manifest of an ensemble folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pfge import StorageError
from pfge.storage.ensemble_folder import MANIFEST, commit_manifest, prepare_for_overwrite


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(StorageError, match="holds other files and no ensemble; choose"):
        prepare_for_overwrite(tmp_path)


def test_a_manifest_that_another_writer_puts_there_meanwhile_is_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_folder = Path.iterdir

    def published_just_before(folder: Path) -> Iterator[Path]:
        (folder / MANIFEST).write_text('{"format": "pfge-ensemble"}')
        return list_folder(folder)

    monkeypatch.setattr(Path, "iterdir", published_just_before)
    prepare_for_overwrite(tmp_path)


@pytest.mark.parametrize("name", ["member-1.safetensors", "packed-v2.safetensors", "member-0123.safetensors"])
def test_a_folder_with_files_of_similar_names_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("the user's own")
    with pytest.raises(StorageError, match="holds other files and no ensemble; choose"):
        prepare_for_overwrite(tmp_path)


@pytest.mark.parametrize("text", ["{}", '{"format": "web-app"}', "not JSON"])
def test_a_folder_with_a_manifest_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    (tmp_path / "index.html").write_text("the user's own")
    with pytest.raises(StorageError, match="holds other files and no ensemble; choose"):
        prepare_for_overwrite(tmp_path)


def test_a_manifest_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"name": "my app"}')
    with pytest.raises(StorageError, match="holds other files and no ensemble; choose"):
        prepare_for_overwrite(tmp_path)


def test_an_ensemble_whose_manifest_was_damaged_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("half a mani")
    (tmp_path / "cascade.json").write_text("{}")
    (tmp_path / "member-0123456789abcdef.safetensors").write_bytes(b"half")
    prepare_for_overwrite(tmp_path)


def test_only_files_that_an_ensemble_wrote_are_removed(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"format": "pfge-ensemble"}')
    own = ["member-1.safetensors", "adapter-math-v1/weights.bin", "notes.txt"]
    old = ["packed-0123456789abcdef.safetensors", "adapter-2-0a1b2c3d/adapter_config.json"]
    for name in (*own, *old):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("content")
    prepare_for_overwrite(tmp_path)
    commit_manifest(tmp_path, {"format": "pfge-ensemble"}, [])
    assert [(tmp_path / name).exists() for name in own] == [True] * 3
    assert [(tmp_path / name).exists() for name in old] == [False] * 2
    assert not (tmp_path / "adapter-2-0a1b2c3d").exists()
