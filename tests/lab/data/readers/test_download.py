import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from pfge.lab.data.base import DataError
from pfge.lab.data.published import check_md5, fetch, fetch_folder


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "site" / "file"
    path.parent.mkdir()
    path.write_bytes(b"content")
    return path


def archive_of(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_a_file_arrives_whole_and_nothing_else_is_left(tmp_path: Path, source: Path):
    fetch(source.as_uri(), tmp_path / "data" / "file", md5(source))
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["file"]
    assert (tmp_path / "data" / "file").read_bytes() == b"content"


def test_a_download_with_another_md5_leaves_nothing_behind(tmp_path: Path, source: Path):
    with pytest.raises(DataError, match=f"published md5 {'0' * 32}, found {md5(source)}"):
        fetch(source.as_uri(), tmp_path / "data" / "file", "0" * 32)
    assert list((tmp_path / "data").iterdir()) == []


def test_a_failed_download_keeps_the_file_that_was_there(tmp_path: Path, source: Path):
    target = tmp_path / "file"
    target.write_bytes(b"older")
    with pytest.raises(DataError):
        fetch(source.as_uri(), target, "0" * 32)
    assert target.read_bytes() == b"older"


def test_a_url_that_does_not_answer_is_named_with_the_remedy(tmp_path: Path):
    url = (tmp_path / "nothing").as_uri()
    with pytest.raises(DataError, match=rf"could not fetch {url}: .* put its files into"):
        fetch(url, tmp_path / "data" / "file", "0" * 32)


def test_the_files_of_an_archive_arrive_in_their_folder(tmp_path: Path):
    archive = archive_of(tmp_path / "a.tar.gz", {"set/one": b"1", "set/two": b"2", "other": b"3"})
    fetch_folder(archive.as_uri(), tmp_path / "data" / "set", md5(archive))
    found = {path.name: path.read_bytes() for path in (tmp_path / "data" / "set").iterdir()}
    assert found == {"one": b"1", "two": b"2"}
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["set"]


def test_an_archive_that_writes_outside_is_refused(tmp_path: Path):
    archive = archive_of(tmp_path / "a.tar.gz", {"../../escaped": b"1"})
    with pytest.raises(DataError, match="could not fetch"):
        fetch_folder(archive.as_uri(), tmp_path / "data" / "set", md5(archive))
    assert not list(tmp_path.rglob("escaped"))


def test_an_archive_with_another_md5_is_not_opened(tmp_path: Path):
    archive = archive_of(tmp_path / "a.tar.gz", {"set/one": b"1"})
    with pytest.raises(DataError, match="published md5"):
        fetch_folder(archive.as_uri(), tmp_path / "data" / "set", "0" * 32)
    assert list((tmp_path / "data" / "set").iterdir()) == []


def test_a_file_on_disk_with_another_md5_is_named(source: Path):
    check_md5(source, md5(source))
    with pytest.raises(
        DataError, match=f"{source} must have the published md5 {'0' * 32}, found {md5(source)}"
    ):
        check_md5(source, "0" * 32)
