import hashlib
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pfge.lab.data.base import DataError
from pfge.lab.data.published import CIFAR10, CIFAR100, Cifar, load_cifar
from tests.lab.data.readers.cifar_files import (
    BINARY,
    IMAGES,
    PICKLED,
    python2_array,
    python2_list,
    python2_pickle,
    python2_string,
    small,
    write,
)

EITHER_SET = pytest.mark.parametrize("cifar", [CIFAR10, CIFAR100], ids=lambda cifar: cifar.name)


@EITHER_SET
def test_both_layouts_give_the_same_tensors(cifar: Cifar, tmp_path: Path):
    cifar = small(cifar)
    write(cifar, BINARY, tmp_path / "binary")
    write(cifar, PICKLED, tmp_path / "pickled")
    binary, pickled = (load_cifar(cifar, tmp_path / name) for name in ("binary", "pickled"))
    for one, other in zip(binary, pickled, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
        assert one.class_names == other.class_names


def test_images_are_read_in_order_as_planes_of_red_green_and_blue(tmp_path: Path):
    cifar = small(CIFAR10)
    folder = write(cifar, BINARY, tmp_path)
    record = bytes([3]) + bytes([10] * 1024) + bytes([20] * 1024) + bytes([30] * 31) + bytes([40] * 993)
    second = folder / "data_batch_2.bin"
    second.write_bytes(record + second.read_bytes()[3073:])
    train, _ = load_cifar(cifar, tmp_path)
    image = train.images[IMAGES]
    assert train.labels[IMAGES] == 3
    assert image[:, 0, 0].tolist() == [10, 20, 30]
    assert image[2, 0, 30:].tolist() == [30, 40]


def test_the_fine_label_is_the_class_of_cifar100(tmp_path: Path):
    cifar = small(CIFAR100)
    folder = write(cifar, BINARY, tmp_path)
    stored = np.fromfile(folder / "train.bin", dtype=np.uint8).reshape(IMAGES, 3074)
    train, _ = load_cifar(cifar, tmp_path)
    assert train.labels.tolist() == stored[:, 1].tolist()


def test_the_folder_of_the_data_can_itself_be_the_root(tmp_path: Path):
    folder = write(small(CIFAR10), BINARY, tmp_path)
    train, test = load_cifar(small(CIFAR10), folder)
    assert (len(train), len(test)) == (5 * IMAGES, IMAGES)


def test_a_truncated_binary_file_is_named_with_both_sizes(tmp_path: Path):
    path = write(small(CIFAR10), BINARY, tmp_path) / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        DataError, match=rf"{path} must have 12292 bytes for 4 images, found 12291; it is trunc"
    ):
        load_cifar(small(CIFAR10), tmp_path)


def test_a_truncated_pickle_is_named(tmp_path: Path):
    path = write(small(CIFAR10), PICKLED, tmp_path) / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-9000])
    with pytest.raises(DataError, match=f"{path} was refused"):
        load_cifar(small(CIFAR10), tmp_path)


def test_a_pickle_with_too_few_images_is_named(tmp_path: Path):
    path = write(small(CIFAR10), PICKLED, tmp_path) / "test_batch"
    array = python2_array(np.zeros((3, 3072), dtype=np.uint8))
    path.write_bytes(python2_pickle({"data": array, "labels": python2_list([b"K\x01"] * 4)}))
    with pytest.raises(DataError, match=rf"{path} must hold 4 .* got 4 and uint8 \[3, 3072\]"):
        load_cifar(small(CIFAR10), tmp_path)


def test_a_pickle_without_labels_is_named(tmp_path: Path):
    path = write(small(CIFAR10), PICKLED, tmp_path) / "test_batch"
    path.write_bytes(python2_pickle({}))
    with pytest.raises(DataError, match=f"{path} must hold a list under 'labels'"):
        load_cifar(small(CIFAR10), tmp_path)


def test_a_label_out_of_range_is_named_with_its_file(tmp_path: Path):
    path = write(small(CIFAR10), BINARY, tmp_path) / "test_batch.bin"
    path.write_bytes(bytes([10]) + path.read_bytes()[1:])
    with pytest.raises(DataError, match=rf"{path}: labels must lie in 0\.\.9 .* got 10 at image 0"):
        load_cifar(small(CIFAR10), tmp_path)


@pytest.mark.parametrize("kind", [BINARY, PICKLED])
def test_a_wrong_md5_is_refused_unless_verification_is_off(tmp_path: Path, kind: int):
    cifar = small(CIFAR10)
    folder = write(cifar, kind, tmp_path)
    layout = cifar.layouts[kind]
    path = folder / layout.test[0].name
    found = hashlib.md5(path.read_bytes()).hexdigest()
    expected = CIFAR10.layouts[kind].test[0].md5
    layouts = list(cifar.layouts)
    layouts[kind] = replace(layout, test=(replace(layout.test[0], md5=expected),))
    cifar = replace(cifar, layouts=tuple(layouts))
    with pytest.raises(DataError, match=f"{path} must have the published md5 {expected}, found {found}"):
        load_cifar(cifar, tmp_path)
    assert len(load_cifar(cifar, tmp_path, verify=False)[1]) == IMAGES


def test_missing_data_is_reported_with_the_searched_folders_and_the_remedy(tmp_path: Path):
    with pytest.raises(DataError) as caught:
        load_cifar(CIFAR100, tmp_path)
    message = str(caught.value)
    assert message.startswith("cifar100 was not found in ")
    assert str(tmp_path / "cifar-100-binary") in message
    assert str(tmp_path / "cifar-100-python") in message
    assert message.endswith("use --download, or put the files there")


def test_an_incomplete_folder_is_reported_with_what_it_lacks(tmp_path: Path):
    folder = write(small(CIFAR10), BINARY, tmp_path)
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=rf"{folder} \(lacks data_batch_4.bin\)"):
        load_cifar(small(CIFAR10), tmp_path)


def test_data_is_downloaded_on_request_and_then_found(tmp_path: Path):
    cifar = small(CIFAR10)
    folder = write(cifar, BINARY, tmp_path / "site")
    archive = tmp_path / "site" / "archive.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    layout = replace(
        cifar.layouts[BINARY], url=archive.as_uri(), md5=hashlib.md5(archive.read_bytes()).hexdigest()
    )
    cifar = replace(cifar, layouts=(layout, cifar.layouts[PICKLED]))
    fetched, _ = load_cifar(cifar, tmp_path / "data", download=True)
    found, _ = load_cifar(cifar, tmp_path / "data")
    assert torch.equal(fetched.images, found.images)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar-10-batches-bin"]


def test_the_official_files_hold_fifty_thousand_training_and_ten_thousand_test_images():
    for layout in (*CIFAR10.layouts, *CIFAR100.layouts):
        assert sum(file.images for file in layout.train) == 50_000
        assert sum(file.images for file in layout.test) == 10_000
        assert layout.url.startswith("https://www.cs.toronto.edu/~kriz/")


@pytest.mark.parametrize("kind", [BINARY, PICKLED])
def test_other_names_of_classes_than_the_published_are_refused(tmp_path: Path, kind: int) -> None:
    cifar = replace(small(CIFAR10), names_sha256=CIFAR10.names_sha256)
    names = write(cifar, kind, tmp_path) / cifar.layouts[kind].names
    with pytest.raises(DataError, match=f"{names.name} must hold the published names of the classes"):
        load_cifar(cifar, tmp_path)
    load_cifar(cifar, tmp_path, verify=False)
    published = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    if kind == BINARY:
        names.write_text("\n".join(published))
    else:
        listed = python2_list([python2_string(name.encode()) for name in published])
        names.write_bytes(python2_pickle({cifar.names_key: listed}))
    assert load_cifar(cifar, tmp_path)[0].class_names == tuple(published)
