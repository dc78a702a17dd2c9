"""Files that could be endless, and what reads them."""

import os
from pathlib import Path

import pytest

from pfge import Ensemble, StorageError, load_checkpoint
from pfge.lab.config.settings import ConfigError
from pfge.lab.config.toml import load_experiment
from pfge.lab.run.results import ComparisonRow, read_rows
from pfge.storage.files import UnreadableFileError, read_bounded, read_json_object
from tests.toys import make_mlp


def test_a_regular_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_bounded(file, 5) == b"12345"
    with pytest.raises(UnreadableFileError, match="at most 4 bytes, but has 5"):
        read_bounded(file, 4)
    with pytest.raises(FileNotFoundError):
        read_bounded(tmp_path / "missing")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders here")
def test_a_pipe_in_place_of_a_file_is_refused_and_does_not_wait(tmp_path: Path) -> None:
    for name in ("manifest.json", "config.toml", "results.jsonl", "run.checkpoint"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(StorageError, match="must be a regular file"):
        Ensemble.load(tmp_path, make_mlp)
    with pytest.raises(ConfigError, match="must be a regular file"):
        load_experiment(tmp_path / "config.toml")
    with pytest.raises(StorageError, match="must be a regular file"):
        read_rows(tmp_path / "results.jsonl", ComparisonRow)
    with pytest.raises(StorageError, match="must be a regular file"):
        load_checkpoint(tmp_path / "run.checkpoint")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no endless device here")
def test_a_link_to_an_endless_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").symlink_to("/dev/zero")
    with pytest.raises(StorageError, match="must be a regular file"):
        read_json_object(tmp_path / "manifest.json")


def test_values_nested_without_end_are_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(StorageError, match=r"deep\.json must be JSON"):
        read_json_object(tmp_path / "deep.json")
    (tmp_path / "deep.toml").write_text("x = " + "[" * 50_000)
    with pytest.raises(ConfigError, match=r"deep\.toml must be TOML"):
        load_experiment(tmp_path / "deep.toml")
    with pytest.raises(ConfigError):
        load_experiment(None, ["name.x=" + "[" * 50_000])
