"""The page at both widths, in light, in dark and on paper, and for people who cannot see it."""

import base64
import json
import re
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from site_browser import emulate, find_serious

from pfge.reports.page import make_page
from pfge.reports.run import Run
from tests.reports.browsing import DESKTOP, PHONE, needs_browser, opened
from tests.reports.made_run import MEMBERS, form_rows, make_run, result, write_forms, write_results

PAPER = 718
"""CSS pixels between the margins of A4, of a centimeter each."""
PAGES = ["page", "page_of_forms", "page_of_three"]


@needs_browser
@pytest.mark.parametrize("which", PAGES)
def test_nothing_stands_in_the_way_of_a_reader(
    browser: Any, which: str, request: pytest.FixtureRequest
) -> None:
    opened(browser, request.getfixturevalue(which), DESKTOP)
    browser.execute_script("for (const part of document.querySelectorAll('details')) part.open = true")
    for width, scheme in product((PHONE, DESKTOP), ("light", "dark")):
        emulate(browser, width, scheme)
        assert find_serious(browser, only_colors=scheme == "dark") == [], (width, scheme)
    emulate(browser, DESKTOP, "dark", media="print")
    assert find_serious(browser) == []


@needs_browser
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_names_on_the_loss_plane_are_legible_and_on_nothing_else(
    browser: Any, page: Path, width: int
) -> None:
    opened(browser, page, width)
    drawn = browser.execute_script("""
        const box = (node) => {
            const { left, top, right, bottom } = node.getBoundingClientRect();
            return [left, top, right, bottom];
        };
        const svg = document.querySelector('[data-panel="run-1-landscape/0"] svg');
        const size = parseFloat(getComputedStyle(svg.querySelector('text')).fontSize);
        return {
            figure: box(svg),
            texts: [...svg.querySelectorAll('text')].map(node => ({ text: node.textContent, at: box(node) })),
            height: size * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width,
        };
    """)
    assert drawn["height"] >= 9.5  # CSS pixels
    left, top, right, bottom = drawn["figure"]
    assert right <= width
    for text in drawn["texts"]:
        at = text["at"]
        assert left - 1 <= at[0], text
        assert at[2] <= right + 1, text
        assert top - 1 <= at[1], text
        assert at[3] <= bottom + 1, text
    for index, one in enumerate(drawn["texts"]):
        for other in drawn["texts"][index + 1 :]:
            across = min(one["at"][2], other["at"][2]) - max(one["at"][0], other["at"][0])
            down = min(one["at"][3], other["at"][3]) - max(one["at"][1], other["at"][1])
            assert across <= 3 or down <= 4, (one, other)  # a line of text is higher than its letters


@needs_browser
def test_the_loss_plane_is_dark_on_a_dark_page(browser: Any, page: Path) -> None:
    color = """
        const text = document.querySelector('[data-panel="run-1-landscape/0"] svg text');
        return getComputedStyle(text).fill;
    """
    opened(browser, page, DESKTOP, "light")
    assert browser.execute_script(color) == "rgb(91, 100, 114)"
    opened(browser, page, DESKTOP, "dark")
    assert browser.execute_script(color) == "rgb(160, 168, 181)"


@needs_browser
def test_panels_of_one_kind_have_one_axis(browser: Any, page_of_forms: Path) -> None:
    opened(browser, page_of_forms, DESKTOP)
    ticks = browser.execute_script("""
        const panels = [...document.querySelectorAll('[data-panel^="run-1-tradeoff"] svg')];
        const texts = (svg) => [...svg.querySelectorAll('text[text-anchor=end]:not(.name)')];
        return panels.map(svg => texts(svg).map(node => node.textContent));
    """)
    assert len(ticks) == 4  # accuracy and NLL against memory, and both against passes
    assert ticks[0] == ticks[2] != ticks[1]
    assert ticks[1] == ticks[3]


@needs_browser
def test_formats_that_others_beat_are_folded_away(browser: Any, page_of_forms: Path) -> None:
    opened(browser, page_of_forms, DESKTOP)
    table = "#run-1-tables .sheet:last-child"
    rows = "return document.querySelectorAll(arguments[0]).length"
    shown = browser.execute_script(rows, f"{table} > .scroll tbody tr")
    folded = browser.execute_script(rows, f"{table} details tbody tr")
    assert 0 < shown < folded
    assert browser.find_element("css selector", f"{table} details summary").text == f"All {folded} rows"


@needs_browser
@pytest.mark.parametrize("which", PAGES)
def test_the_page_can_be_printed(browser: Any, which: str, request: pytest.FixtureRequest) -> None:
    opened(browser, request.getfixturevalue(which), DESKTOP, "dark")
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    pages = len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed["data"])))
    assert 1 < pages < 40
    emulate(browser, PAPER, "dark", media="print")
    try:
        looks = browser.execute_script("""
            const color = (selector) => getComputedStyle(document.querySelector(selector)).color;
            return {
                ink: color('body'),
                cut: [...document.querySelectorAll('.scroll')].filter(n => n.scrollWidth > n.clientWidth + 1
                    && getComputedStyle(n).overflowX !== 'visible').length,
                wide: [...document.querySelectorAll('.scroll > table')].filter(n => n.checkVisibility()
                    && n.getBoundingClientRect().right > innerWidth).map(table => table.innerText),
                navigation: getComputedStyle(document.querySelector('nav')).display,
            };
        """)
    finally:
        emulate(browser, DESKTOP)
    assert looks == {"ink": "rgb(29, 33, 41)", "cut": 0, "wide": [], "navigation": "none"}


def test_the_page_of_a_large_run_is_small_and_made_soon(tmp_path: Path) -> None:
    others = ("EMA", "Snapshot", "Star", "DeepEnsemble")
    methods = [*MEMBERS, *others]
    folder = make_run(tmp_path / "run", seeds=range(1, 6), examples=10_000)
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    rows += [result(name, seed, like="PFGE") for name in others for seed in range(1, 6)]
    write_results(folder, rows)
    write_forms(folder, [row | {"seed": seed} for row in form_rows() for seed in range(1, 6)])
    assert len(methods) == 11
    start = time.process_time()
    page = make_page([Run(folder)])
    assert time.process_time() - start < 5
    assert len(page.encode()) < 6_000_000
