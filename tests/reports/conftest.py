"""Pages of made runs, and a real browser that opens them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from site_browser import started_browser

from pfge.reports.page import make_page
from pfge.reports.run import Run
from tests.reports.browsing import EVIL
from tests.reports.made_run import (
    LANDSCAPE,
    make_run,
    result,
    write_connectivity,
    write_evaluations,
    write_forms,
    write_results,
)

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with started_browser(logs_requests=True) as driver:
        yield driver


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("made") / "run")
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    evil = [result(EVIL, seed, like="SWAG*") for seed in (1, 2)]
    write_results(folder, [*rows, *evil])
    write_connectivity(folder)
    write_evaluations(folder)
    (folder / "landscape.json").write_text(json.dumps(LANDSCAPE))
    file = folder / "report.html"
    file.write_text(make_page([Run(folder)]))
    return file


@pytest.fixture(scope="session")
def page_of_forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("made") / "formats", examples=0)
    write_forms(folder)
    file = folder / "report.html"
    file.write_text(make_page([Run(folder)]))
    return file


@pytest.fixture(scope="session")
def page_of_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    runs = [Run(make_run(folder / name, examples=0)) for name in ("one", "two", EVIL)]
    file = folder / "report.html"
    file.write_text(make_page(runs))
    return file


@pytest.fixture(scope="session")
def page_of_numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A regression has more metrics than classes have, and so wider tables."""
    file = tmp_path_factory.mktemp("numbers") / "report.html"
    file.write_text(make_page([Run(DOCS / "recorded" / "diabetes")]))
    return file
