"""Functions that a user names: the current folder is searched last, and only for these."""

import inspect
import sys
from pathlib import Path

import pytest

from pfge.lab.user_functions import import_function

MODULE = """
import sys

def path():
    return [*sys.path]

def from_neighbor(number, *, factor=2):
    from neighbor_of_test_user_functions import ONE
    return factor * number + ONE

def fail():
    raise RuntimeError("on purpose")

class Net:
    def __init__(self, classes):
        self.classes = classes

number = 3
"""


@pytest.fixture(autouse=True)
def _modules_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_of_test_user_functions.py").write_text(MODULE)
    (tmp_path / "neighbor_of_test_user_functions.py").write_text("ONE = 1\n")
    monkeypatch.chdir(tmp_path)
    for name in ("own_of_test_user_functions", "neighbor_of_test_user_functions", "colorsys"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def own(name: str) -> str:
    return f"own_of_test_user_functions:{name}"


def test_a_function_in_the_current_folder_may_import_its_neighbors_when_it_is_called() -> None:
    function = import_function(own("from_neighbor"), "model")
    assert function(4, factor=10) == 41


def test_the_current_folder_is_last_while_a_function_runs_and_gone_afterwards(tmp_path: Path) -> None:
    before = [*sys.path]
    function = import_function(own("path"), "model")
    assert sys.path == before
    assert function() == [*before, str(tmp_path)]
    assert sys.path == before


@pytest.mark.parametrize("name", ["absent", "number"])
def test_a_function_that_is_not_there_leaves_the_path_as_it_was(name: str) -> None:
    before = [*sys.path]
    with pytest.raises(ValueError, match=f"model 'own_of_test_user_functions:{name}' "):
        import_function(own(name), "model")
    assert sys.path == before


@pytest.mark.parametrize(
    ("code", "reason"),
    [("def make(:\n", r"SyntaxError: invalid syntax .*line 1\)"), ("{}['a']\n", "KeyError: 'a'")],
)
def test_a_module_with_a_mistake_is_told_in_one_line(tmp_path: Path, code: str, reason: str) -> None:
    (tmp_path / "own_of_test_user_functions.py").write_text(code)
    with pytest.raises(ValueError, match=rf"^model .* cannot be imported: {reason}; correct its module$"):
        import_function(own("make"), "model")


def test_a_lack_of_memory_while_a_module_is_imported_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "own_of_test_user_functions.py").write_text("raise RuntimeError('not enough memory')\n")
    with pytest.raises(RuntimeError, match="not enough memory"):
        import_function(own("make"), "model")


def test_a_function_that_fails_leaves_the_path_as_it_was() -> None:
    before = [*sys.path]
    with pytest.raises(RuntimeError, match="on purpose"):
        import_function(own("fail"), "model")()
    assert sys.path == before


def test_a_current_folder_that_is_on_the_path_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    before = [*sys.path]
    assert import_function(own("path"), "model")() == before
    assert sys.path == before


def test_a_file_in_the_current_folder_does_not_hide_an_installed_module(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("def rgb_to_hsv(): raise AssertionError\n")
    assert import_function("colorsys:rgb_to_hsv", "model")(1, 1, 1) == (0, 0, 1)


def test_a_function_and_a_class_keep_their_signature() -> None:
    assert str(inspect.signature(import_function(own("from_neighbor"), "model"))) == "(number, *, factor=2)"
    net = import_function(own("Net"), "model")
    assert str(inspect.signature(net)) == "(classes)"
    assert net(5).classes == 5
