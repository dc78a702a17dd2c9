"""Files of tensors, and the SHA-256 beside them."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from pfge import StorageError
from pfge.storage.files import read_recorded, record_of, require_as_recorded, write_recorded, write_tensors
from tests.toys import assert_same_weights

TENSORS = {"a": torch.arange(4.0), "b": torch.ones(2, dtype=torch.int64)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "w0.safetensors"
    write_recorded(path, TENSORS)
    return path


def test_what_was_written_is_read(file: Path) -> None:
    assert_same_weights(read_recorded(file), TENSORS)
    assert require_as_recorded(file)


def test_the_file_is_that_of_write_tensors(file: Path) -> None:
    write_tensors(file.with_name("other"), TENSORS)
    assert file.read_bytes() == file.with_name("other").read_bytes()


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not installed")
def test_sha256sum_understands_the_record(file: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", record_of(file).name], cwd=file.parent, check=True)


def test_every_changed_byte_is_noticed(file: Path) -> None:
    whole = file.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(
            StorageError, match=r"w0\.safetensors must have SHA-256 .* restore it, or remove w0"
        ):
            read_recorded(file)


def test_a_file_without_a_record_is_read(file: Path) -> None:
    record_of(file).unlink()
    assert_same_weights(read_recorded(file), TENSORS)
    assert not require_as_recorded(file)


def test_a_record_without_a_file_says_that_it_is_missing(file: Path) -> None:
    file.unlink()
    with pytest.raises(StorageError, match=r"w0\.safetensors is missing, but w0\.safetensors\.sha256 states"):
        read_recorded(file)


@pytest.mark.parametrize("text", ["", "\xff", "0" * 64, f"{'0' * 64}  other.safetensors\n", "0" * 2000])
def test_a_damaged_record_is_an_error(file: Path, text: str) -> None:
    record_of(file).write_text(text)
    with pytest.raises(StorageError, match=r"w0\.safetensors\.sha256 must"):
        read_recorded(file)


def test_the_record_is_there_before_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.unlink()
    record_of(file).unlink()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pfge.storage.files.write_tensors", stop)
    with pytest.raises(KeyboardInterrupt):
        write_recorded(file, TENSORS)
    assert record_of(file).exists()
    assert not file.exists()
