"""The table of simulated runs in docs/verdicts.md: what it shows, and that the script makes it."""

import runpy
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
LINES = [line for line in (DOCS / "verdicts.md").read_text().splitlines() if line.startswith("|")]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "simulate_verdicts.py"))


def simulated() -> list[tuple[str, dict[str, float]]]:
    start = next(number for number, line in enumerate(LINES) if line.startswith("| truth |"))
    heads, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in LINES[start:]]
    return [
        (cells[0], {h: float(c.removesuffix(" %")) for h, c in zip(heads[4:], cells[4:], strict=True)})
        for cells in rows
    ]


def test_at_most_one_verdict_in_twenty_is_wrong() -> None:
    found = simulated()
    assert len(found) == 28
    assert max(shares["wrong"] for _, shares in found) <= 5


def test_too_little_data_and_one_seed_are_undecided() -> None:
    little = [shares for about, shares in simulated() if "too little data" in about]
    assert len(little) == 4
    assert min(shares["undecided"] for shares in little) > 90
    assert {shares["undecided"] for about, shares in simulated() if "one seed" in about} == {100}


def test_enough_data_finds_the_truth() -> None:
    truths = {"equal": "equal", "better by three margins": "better", "worse by three margins": "worse"}
    for about, expected in truths.items():
        assert max(shares[expected] for name, shares in simulated() if name == about) > 95


def test_the_table_is_that_of_the_recorded_verdicts(script: dict[str, Any]) -> None:
    recorded = script["RECORD"].read_text().splitlines()
    for (scenario, _), verdicts in zip(script["LINES"], recorded, strict=True):
        assert [len(run) for run in verdicts.split()] == [scenario.methods] * script["DRAWS"]
    start = next(number for number, line in enumerate(LINES) if line.startswith("| truth |"))
    assert script["table"](recorded).splitlines() == LINES[start:]


@pytest.mark.slow
def test_the_script_makes_the_lines_of_little_data(script: dict[str, Any]) -> None:
    recorded = script["RECORD"].read_text().splitlines()
    little = [n for n, (scenario, _) in enumerate(script["LINES"]) if scenario.examples <= 1500]
    assert len(little) == 6
    for number in little:
        assert script["simulate"](*script["LINES"][number]) == recorded[number]


@pytest.mark.slow
def test_the_script_makes_the_first_runs_of_every_line(script: dict[str, Any]) -> None:
    recorded = script["RECORD"].read_text().splitlines()
    for line, verdicts in zip(script["LINES"], recorded, strict=True):
        assert script["simulate"](*line, draws=8).split() == verdicts.split()[:8]
