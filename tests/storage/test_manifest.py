"""The manifest of an ensemble folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pfge import StorageError
from pfge.storage.manifest import MANIFEST, prepare_for_overwrite


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(StorageError, match="holds other files and no ensemble; choose"):
        prepare_for_overwrite(tmp_path)


def test_a_manifest_that_another_writer_puts_there_meanwhile_is_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_folder = Path.iterdir

    def published_just_before(folder: Path) -> Iterator[Path]:
        (folder / MANIFEST).write_text("{}")
        return list_folder(folder)

    monkeypatch.setattr(Path, "iterdir", published_just_before)
    prepare_for_overwrite(tmp_path)
