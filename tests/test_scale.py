"""The tables of docs/scale.md: the script makes them, and what the page says of them holds."""

import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    found = runpy.run_path(str(DOCS / "scale_numbers.py"))
    names = found["fill"].__globals__
    for name in ("count_operations", "measure_copies"):  # which are asked the same for each of many runs
        names[name] = found[name] = cache(names[name])
    return found


def test_operations_are_those_of_the_published_models(script: dict[str, Any]) -> None:
    """4.09 and 11.51 billion multiplications and additions, each of which counts twice."""
    assert script["count_operations"]("torchvision:resnet50") / 2 == pytest.approx(4.09e9, rel=0.01)
    assert script["count_operations"]("torchvision:resnet152") / 2 == pytest.approx(11.51e9, rel=0.01)


def test_the_copies_that_methods_hold_are_measured(script: dict[str, Any]) -> None:
    copies = {name: script["measure_copies"](name) for name in ("SWA", "FGE", "PFGE", "SWAG")}
    assert copies == {"SWA": (1, 1), "FGE": (0, 20), "PFGE": (1, 4), "SWAG": (22, 20)}


def test_the_bottlenecks_are_those_that_the_page_names(script: dict[str, Any]) -> None:
    found = {gpus: script["find_costs"](gpus, sharded=False).bottleneck for gpus in (8, 64, 512)}
    assert found == {8: "decoding pictures", 64: "decoding pictures", 512: "reading pictures"}


@pytest.mark.slow
def test_the_graph_is_that_of_all_27_runs(script: dict[str, Any]) -> None:
    units, chains = script["simulated_units"]()
    starts = [unit for unit in units if unit.name[1].endswith(": w0")]
    assert len(starts) == 27
    known = {unit.name for unit in units}
    assert len(known) == len(units)
    assert chains.keys() == known
    assert all(need in known for unit in units for need in unit.needs)


@pytest.mark.slow
def test_the_tables_are_those_that_the_script_makes(script: dict[str, Any]) -> None:
    text = (DOCS / "scale.md").read_text(encoding="utf-8")
    assert script["fill"](text) == text
