"""Every public name has an example in its docstring, and every example does what it shows."""

import doctest
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

MODULES = [
    "pfge",
    "pfge.averages",
    "pfge.calibration",
    "pfge.collectors",
    "pfge.compression",
    "pfge.connectivity",
    "pfge.metrics",
    "pfge.schedules",
    "pfge.storage",
    "pfge.tasks",
    "pfge.views",
    "pfge.weights",
]
TYPES = {"pfge.Weights", "pfge.weights.Weights", "pfge.schedules.Schedule"}
"""Names of types that have no docstring of their own; the docstrings of their modules have the example."""


def public() -> Iterator[tuple[str, object]]:
    """Yield each module, class and function once, under the shortest of its names."""
    seen: set[int] = set()
    for name in MODULES:
        module = importlib.import_module(name)
        yield name, module
        for path, value in ((f"{name}.{public}", getattr(module, public)) for public in module.__all__):
            if path not in TYPES and not inspect.ismodule(value) and id(value) not in seen:
                seen.add(id(value))
                yield path, value


PUBLIC = dict(public())


def examples_in(name: str) -> list[doctest.DocTest]:
    value = PUBLIC[name]
    found = doctest.DocTestFinder(recurse=not inspect.ismodule(value)).find(value, name, globs={})
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in MODULES])
def test_every_public_name_has_an_example(name: str) -> None:
    assert "Example:\n" in (PUBLIC[name].__doc__ or ""), f"{name} has no example"
    assert examples_in(name)


@pytest.mark.parametrize("name", PUBLIC)
def test_examples_do_what_they_show(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        for example in examples_in(name):
            report: list[str] = []
            doctest.DocTestRunner(verbose=False).run(example, out=report.append)
            assert not report, "".join(report)
