import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pfge.lab.data import DataError, load_data, packaged
from pfge.lab.data.packaged import load_mnist1d
from pfge.storage.files import write_recorded


@pytest.mark.slow
def test_signals_are_always_the_same_in_ten_classes_and_leave_the_global_random_numbers_alone(
    tmp_path: Path, signals: Path
) -> None:
    splits = load_data("mnist1d", root=signals)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (4000, 2000, 8000)
    assert splits.channels == 1
    assert splits.train.inputs.shape == (4000, 1, 40)
    everything = torch.cat([part.inputs for part in (splits.train, splits.validation, splits.test)])
    assert everything.mean().item() == pytest.approx(0, abs=1e-5)
    assert everything.std().item() == pytest.approx(1, abs=1e-4)
    labels = torch.cat([part.labels for part in (splits.train, splits.validation, splits.test)])
    assert labels.bincount().tolist() == [1400] * 10
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    again = load_mnist1d.__wrapped__(tmp_path / "elsewhere")[0]
    assert torch.equal(again.inputs, splits.train.inputs)
    assert (random.random(), np.random.rand()) == expected


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Return what takes the place of the generated signals, which take seconds."""
    inputs = torch.randn(14_000, 1, 40, generator=torch.Generator().manual_seed(0))
    made = {"inputs": inputs, "labels": torch.arange(14_000) % 10}
    monkeypatch.setattr(packaged, "_generate", lambda: made)
    return made


def test_signals_are_generated_once(
    made: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_mnist1d.__wrapped__(tmp_path)
    monkeypatch.setattr(packaged, "_generate", lambda: pytest.fail("they are generated again"))
    found = load_mnist1d.__wrapped__(tmp_path)[2]
    assert torch.equal(found.inputs, made["inputs"][6000:])
    assert torch.equal(found.labels, made["labels"][6000:])


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def replace(file: Path) -> None:
    write_recorded(file, {"inputs": torch.zeros(3, 1, 40), "labels": torch.zeros(3)})


@pytest.mark.parametrize("spoil", [damage, replace, Path.unlink])
def test_signals_that_were_not_kept_whole_are_generated_again(
    made: dict[str, Tensor], tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    load_mnist1d.__wrapped__(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    before = file.read_bytes()
    spoil(file)
    found = load_mnist1d.__wrapped__(tmp_path)[0]
    assert torch.equal(found.inputs, made["inputs"][:4000])
    assert file.read_bytes() == before


def test_signals_are_generated_where_no_file_can_be_written(made: dict[str, Tensor], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way of the folder")
    found = load_mnist1d.__wrapped__(tmp_path / "file")[1]
    assert torch.equal(found.inputs, made["inputs"][4000:6000])


def test_the_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mnist1d.data", None)
    with pytest.raises(DataError, match=r"pip install \"pfge\[mnist1d\]\""):
        load_mnist1d.__wrapped__(tmp_path)
