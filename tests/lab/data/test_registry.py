import sys
from pathlib import Path
from types import ModuleType

import pytest

from pfge.lab.data.base import IMAGENET_NORMALIZATION, DataError, Normalization
from pfge.lab.data.batches import evaluation_batches
from pfge.lab.data.registry import default_root, load_data
from pfge.lab.data.splits import Splits
from tests.lab.data.made import random_images, write_pictures


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("own_data")
    monkeypatch.setitem(sys.modules, "own_data", module)
    return module


def test_digits_come_with_a_validation_part_and_their_own_statistics():
    splits = load_data("digits", validation=0.1)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (900, 100, 797)
    assert splits.normalization.mean == pytest.approx((0.3037,), abs=1e-4)
    assert splits.normalization.std == pytest.approx((0.3755,), abs=1e-4)


def test_another_normalization_replaces_the_data_sets_own():
    normalization = Normalization((0.1,), (0.2,))
    assert load_data("digits", normalization=normalization).normalization == normalization


def test_a_function_of_the_user_supplies_the_splits(own_module: ModuleType):
    made = Splits(
        train=random_images(6),
        validation=random_images(3),
        test=random_images(3),
        normalization=IMAGENET_NORMALIZATION,
    )
    own_module.load = lambda: made
    assert load_data("own_data:load", validation=2) is made


def test_a_function_that_holds_nothing_out_gets_a_validation_part(own_module: ModuleType):
    data = random_images(6)
    own_module.load = lambda: Splits(
        train=data, validation=data.select([]), test=data, normalization=IMAGENET_NORMALIZATION
    )
    splits = load_data("own_data:load", validation=3)
    assert (len(splits.train), len(splits.validation)) == (3, 3)


def test_a_function_that_returns_something_else_is_refused(own_module: ModuleType):
    own_module.load = lambda: 3
    with pytest.raises(
        DataError, match=r"'own_data:load' must return Splits or DatasetSplits of pfge.lab.data, got int"
    ):
        load_data("own_data:load")


def test_a_function_that_needs_an_argument_is_refused(own_module: ModuleType):
    own_module.load = lambda path: path
    message = r"must be a function without required arguments, but missing .* 'path'; give arguments defaults"
    with pytest.raises(DataError, match=message):
        load_data("own_data:load")


@pytest.mark.parametrize("error", [KeyError("a"), RuntimeError("a"), TypeError("a")], ids=repr)
def test_an_error_of_a_function_is_told_in_one_line(own_module: ModuleType, error: Exception):
    def load() -> None:
        raise error

    own_module.load = load
    message = f"data 'own_data:load' cannot be made: {type(error).__name__}: {error}; correct its code"
    with pytest.raises(DataError, match=message):
        load_data("own_data:load")


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize("name", ["own_data:missing", "no_such_module:load", ":load"])
def test_a_function_that_cannot_be_imported_is_named(name: str):
    with pytest.raises(DataError, match=f"data '{name}' cannot be imported: .*PYTHONPATH"):
        load_data(name)


def test_an_unknown_name_lists_what_is_allowed_and_the_nearest():
    with pytest.raises(DataError, match=r"unknown data set 'digit'; did you mean 'digits'\? .*cifar10"):
        load_data("digit")


def test_the_root_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PFGE_DATA", "somewhere")
    assert default_root() == Path("somewhere")


def test_the_root_is_a_cache_folder_otherwise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PFGE_DATA", raising=False)
    assert default_root() == Path.home() / ".cache" / "pfge"


@pytest.mark.parametrize(("name", "size"), [("folder", 32), ("stream", 224)])
def test_a_folder_of_pictures_is_given_by_its_path(tmp_path: Path, name: str, size: int):
    write_pictures(tmp_path / "a", 10)
    splits = load_data(f"{name}:{tmp_path}", validation=2)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (6, 2, 2)
    inputs, _ = next(iter(evaluation_batches(splits.test, splits.normalization, batch_size=2)))
    assert inputs.shape == (2, 3, size, size)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashion-mnist", "imagenet"])
def test_data_that_is_not_there_is_an_error_that_names_the_root(tmp_path: Path, name: str):
    with pytest.raises(DataError, match=f"{name} was not found.*{tmp_path}"):
        load_data(name, root=tmp_path)


def test_missing_pillow_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r'pip install "pfge\[lab\]"'):
        load_data("folder:somewhere")
