from pathlib import Path

import pytest

from pfge.lab.data.base import DataError
from pfge.lab.data.pictures import check_same_classes, find_pictures


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_classes_and_files_are_sorted(tmp_path: Path):
    touch(tmp_path, "b/2.png", "b/1.JPEG", "a/sub/3.jpg", "a/note.txt", "loose.png")
    files = find_pictures(tmp_path)
    assert files.class_names == ("a", "b")
    assert files.labels.tolist() == [0, 1, 1]
    assert [files.path(index) for index in range(len(files))] == [
        tmp_path / "a/sub/3.jpg",
        tmp_path / "b/1.JPEG",
        tmp_path / "b/2.png",
    ]


def test_file_names_of_any_alphabet_are_kept(tmp_path: Path):
    touch(tmp_path, "ä/貓 1.png")
    files = find_pictures(tmp_path)
    assert files.path(0) == tmp_path / "ä/貓 1.png"
    assert files.class_names == ("ä",)


def test_selected_pictures_keep_their_classes(tmp_path: Path):
    files = find_pictures(touch(tmp_path, "a/1.png", "b/2.png", "c/3.png")).select([2, 0])
    assert files.labels.tolist() == [2, 0]
    assert files.path(0) == tmp_path / "c/3.png"
    assert len(files.select([])) == 0


def test_a_path_that_is_no_folder_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=f"{tmp_path / 'none'} must be a folder of class folders"):
        find_pictures(tmp_path / "none")


def test_a_folder_without_class_folders_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=f"{tmp_path} must have a folder for each class"):
        find_pictures(touch(tmp_path, "1.png"))


def test_a_class_folder_without_pictures_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=f"the class folder {tmp_path / 'b'} has no pictures"):
        find_pictures(touch(tmp_path, "a/1.png", "b/note.txt"))


@pytest.mark.parametrize(("one", "other"), [("train", "val"), ("val", "train")])
def test_a_class_folder_that_only_one_part_has_is_named(tmp_path: Path, one: str, other: str):
    touch(tmp_path, f"{one}/a/1.png", f"{one}/b/1.png", f"{other}/a/1.png")
    train, val = find_pictures(tmp_path / "train"), find_pictures(tmp_path / "val")
    with pytest.raises(DataError, match=f"{other} lacks 1 class folders that .*{one} has: b; every class"):
        check_same_classes(train, val)
