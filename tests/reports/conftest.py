"""Pages of made runs, and a real browser that opens them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pfge.reports.page.page import make_page
from pfge.reports.run import Run
from tests.reports.browsing import CHROMIUM, DRIVER, EVIL
from tests.reports.figures.test_landscape import FOUND
from tests.reports.made_run import (
    make_run,
    result,
    write_connectivity,
    write_evaluations,
    write_forms,
    write_results,
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(120)  # seconds; a busy machine is slow
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("made") / "run")
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    write_results(folder, [*rows, result(EVIL, 1, like="SWAG*")])
    write_connectivity(folder)
    write_evaluations(folder)
    (folder / "landscape.json").write_text(json.dumps(FOUND))
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
