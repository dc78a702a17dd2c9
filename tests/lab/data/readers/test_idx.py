import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pfge.lab.data.base import DataError
from pfge.lab.data.published import FASHION_MNIST, MNIST, load_idx, read_idx
from tests.lab.data.readers.idx_files import FILES, write


@pytest.mark.parametrize("gzipped", [False, True])
def test_images_and_labels_are_read_plain_or_gzipped(tmp_path: Path, gzipped: bool):
    write(tmp_path / "mnist", gzipped=gzipped)
    train, test = load_idx(MNIST, tmp_path, verify=False)
    assert torch.equal(train.images, torch.arange(12, dtype=torch.uint8).view(2, 1, 2, 3))
    assert train.labels.tolist() == [9, 4]
    assert torch.equal(test.images, torch.arange(6, dtype=torch.uint8).view(1, 1, 2, 3))
    assert test.labels.tolist() == [7]


@pytest.mark.parametrize("folder", ["fashion-mnist", "FashionMNIST/raw", "."])
def test_the_usual_folders_are_searched(tmp_path: Path, folder: str):
    write(tmp_path / "root" / folder)
    train, _ = load_idx(FASHION_MNIST, tmp_path / "root")
    assert train.class_names[9] == "ankle boot"


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\x08", bytes([0, 0, 9, 1, 0, 0, 0, 0]), bytes([0, 0, 8, 0]), bytes([0, 0, 8, 2, 0, 0])],
)
def test_a_file_that_does_not_start_as_idx_is_named(tmp_path: Path, content: bytes):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DataError, match=f"{tmp_path / 'file'} must start as an idx file"):
        read_idx(tmp_path / "file")


@pytest.mark.parametrize(("found", "content"), [(2, b"ab"), (4, b"abcd")])
def test_a_file_shorter_or_longer_than_its_shape_is_named(tmp_path: Path, found: int, content: bytes):
    (tmp_path / "file").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + content)
    with pytest.raises(DataError, match=rf"must have 3 bytes for the shape \[3\], found {found}"):
        read_idx(tmp_path / "file")


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-9], lambda raw: b"x" + raw, lambda raw: raw[:10] + b"\xff" + raw[11:]]
)
def test_a_damaged_gzip_file_is_named(tmp_path: Path, damage):
    path = tmp_path / "file.gz"
    path.write_bytes(damage(gzip.compress(FILES["train-images-idx3-ubyte"])))
    with pytest.raises(DataError, match=f"{path} must be a whole gzip file"):
        read_idx(path)


def test_labels_out_of_range_are_refused(tmp_path: Path):
    write(tmp_path / "mnist", **{"t10k-labels-idx1-ubyte": bytes([0, 0, 8, 1, 0, 0, 0, 1, 10])})
    with pytest.raises(DataError, match=r"mnist: labels must lie in 0\.\.9 .* got 10 at image 0"):
        load_idx(MNIST, tmp_path)


def test_exchanged_files_are_refused(tmp_path: Path):
    write(tmp_path / "mnist", **{"t10k-labels-idx1-ubyte": FILES["t10k-images-idx3-ubyte"]})
    with pytest.raises(DataError, match=r"labels \[N\], got \[1, 2, 3\] and \[1, 2, 3\]; .*exchanged"):
        load_idx(MNIST, tmp_path)


def test_a_gzipped_file_with_another_md5_is_refused(tmp_path: Path):
    write(tmp_path / "mnist", gzipped=True)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz must have the published md5 f68b3c2d"):
        load_idx(MNIST, tmp_path)


def test_missing_data_is_reported_with_the_searched_folders_and_the_remedy(tmp_path: Path):
    with pytest.raises(DataError, match=rf"mnist was not found: .*{tmp_path / 'mnist'}, .* use --download"):
        load_idx(MNIST, tmp_path)


def test_missing_files_are_downloaded_on_request(tmp_path: Path):
    site = write(tmp_path / "site", gzipped=True)
    md5 = {name: hashlib.md5((site / f"{name}.gz").read_bytes()).hexdigest() for name in FILES}
    data = replace(MNIST, url=site.as_uri(), md5=md5)
    train, _ = load_idx(data, tmp_path / "data", download=True)
    assert train.labels.tolist() == [9, 4]
    assert len(list((tmp_path / "data" / "mnist").iterdir())) == 4
