"""The page in a real browser: charts are drawn, points can be read, methods hidden, and nothing leaves it."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.reports.browsing import DESKTOP, EVIL, PHONE, browser_marks, opened
from tests.reports.made_run import MEMBERS

pytestmark = browser_marks


def marks(browser: Any, method: str) -> int:
    """Return how many charts show a method."""
    script = """
        const groups = [...document.querySelectorAll('g[data-method]')];
        return groups.filter(group => group.dataset.method === arguments[0]).length;
    """
    return int(browser.execute_script(script, method))


def place_of(browser: Any, method: str) -> dict[str, float]:
    """Scroll to a method's mark in the first chart and return where it is in the window."""
    script = """
        const group = [...document.querySelector('svg.plot').querySelectorAll('g[data-method]')]
            .find(g => g.dataset.method === arguments[0]);
        group.scrollIntoView({ block: 'center', behavior: 'instant' });
        const box = group.lastChild.getBoundingClientRect();
        return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
    """
    return dict(browser.execute_script(script, method))


def tip(browser: Any) -> str:
    script = "const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.innerText"
    return str(browser.execute_script(script))


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_every_chart_is_drawn_within_the_window_and_has_a_name(browser: Any, page: Path, width: int) -> None:
    opened(browser, page, width)
    drawn = browser.execute_script("""
        return [...document.querySelectorAll('[data-panel]')].map(holder => ({
            series: holder.querySelectorAll('g[data-method]').length,
            right: holder.querySelector('svg')?.getBoundingClientRect().right,
            label: holder.querySelector('svg')?.getAttribute('aria-label'),
            broken: holder.innerHTML.includes('NaN') || holder.innerHTML.includes('Infinity'),
        }))
    """)
    # 2 each but for unknown inputs and the loss plane, which have 1
    assert len(drawn) == 14
    assert all(chart["series"] > 0 and chart["label"] and not chart["broken"] for chart in drawn)
    assert all(chart["right"] <= width for chart in drawn)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_long_name_ends_within_its_chart(browser: Any, page: Path, width: int) -> None:
    opened(browser, page, width)
    names = browser.execute_script("""
        const right = (node) => node.getBoundingClientRect().right;
        return [...document.querySelectorAll('svg.plot .name')].map(
            node => [node.textContent, right(node) - right(node.closest('svg'))]
        );
    """)
    assert "PFGE" in {name for name, _ in names}
    assert any(name.startswith("<script") and name.endswith("…") for name, _ in names)
    assert [name for name, over in names if over > 0] == []


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("which", ["page", "page_of_forms", "page_of_three", "page_of_numbers"])
def test_no_table_hides_a_column(
    browser: Any, which: str, width: int, request: pytest.FixtureRequest
) -> None:
    opened(browser, request.getfixturevalue(which), width)
    tables = browser.execute_script("""
        for (const details of document.querySelectorAll('details')) details.open = true;
        return [...document.querySelectorAll('.scroll > table')].map(table => ({
            head: table.querySelector('thead').textContent,
            right: Math.max(...[...table.querySelectorAll('td')].map(td => td.getBoundingClientRect().right)),
            end: table.parentNode.getBoundingClientRect().right,
        }));
    """)
    assert len(tables) > 5
    assert [table for table in tables if table["right"] > min(width, table["end"] + 1)] == []


def test_a_name_of_ours_is_in_one_line_where_there_is_room(browser: Any, page_of_numbers: Path) -> None:
    opened(browser, page_of_numbers, DESKTOP)
    heights = browser.execute_script("""
        const cells = [...document.querySelectorAll('.scroll td:first-child')];
        return cells.filter(cell => cell.textContent === 'DeepEnsemble').map(cell => {
            const text = document.createRange();
            text.selectNodeContents(cell);
            return text.getClientRects().length;
        });
    """)
    assert len(heights) > 2
    assert set(heights) == {1}


def test_cards_name_their_columns_and_begin_with_the_metrics(browser: Any, page: Path) -> None:
    opened(browser, page, PHONE)
    heads = browser.execute_script("""
        const cells = [...document.querySelectorAll('#run-1-tables tbody tr')[0].querySelectorAll('td')];
        const place = (cell) => { const at = cell.getBoundingClientRect(); return [at.top, at.left]; };
        cells.sort((a, b) => place(a)[0] - place(b)[0] || place(a)[1] - place(b)[1]);
        return cells.map(cell => getComputedStyle(cell, '::before').content);
    """)
    assert heads[:4] == ["none", '"accuracy %"', '"NLL"', '"ECE %"']
    assert set(heads[4:]) == {'"members"', '"bytes"', '"memory"', '"iterations"'}


def test_legends_list_lines_that_are_of_no_method(browser: Any, page: Path) -> None:
    opened(browser, page, DESKTOP)
    entries = browser.execute_script("""
        return [...document.querySelector('[data-legend]').children].map(entry => entry.textContent)
    """)
    assert entries == [*MEMBERS, EVIL, "Pareto front"]


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_pointer_on_a_mark_shows_its_value(browser: Any, page: Path, width: int) -> None:
    opened(browser, page, width)
    place = place_of(browser, "PFGE")
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **place})
    assert tip(browser) == "PFGE\naccuracy, %: 93.75 ± 0.25\nmemory at test time: 4× 4 MB"
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 1, "y": 1})
    assert tip(browser) == ""


def test_a_touch_shows_the_value_too(browser: Any, page: Path) -> None:
    opened(browser, page, PHONE)
    touch = {"type": "touchStart", "touchPoints": [place_of(browser, "FGE")]}
    browser.execute_cdp_cmd("Input.dispatchTouchEvent", touch)
    assert tip(browser).startswith("FGE\naccuracy, %: 94.25 ± 0.25")


def test_keys_read_every_point_of_a_chart(browser: Any, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, page, DESKTOP)
    chart = browser.find_element("css selector", "svg.plot")
    said = set()
    for _ in range(12):  # 8 methods and 3 points of the front, and once more around
        chart.send_keys(Keys.ARROW_RIGHT)
        said.add(tip(browser).splitlines()[0])
    assert said == {*MEMBERS, EVIL, "Pareto front"}
    chart.send_keys(Keys.ESCAPE)
    assert tip(browser) == ""


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_click_on_a_method_hides_it_in_all_charts_and_another_shows_it(
    browser: Any, page: Path, width: int
) -> None:
    opened(browser, page, width)
    before = {method: marks(browser, method) for method in ("FGE", "PFGE", EVIL)}
    assert before["FGE"] > 5
    click = """
        const buttons = [...document.querySelectorAll('[data-toggles]')];
        const button = buttons.find(found => found.dataset.toggles === arguments[0]);
        button.click();
        return button.getAttribute('aria-pressed');
    """
    assert browser.execute_script(click, "FGE") == "false"
    assert {m: marks(browser, m) for m in before} == before | {"FGE": 0}
    assert browser.execute_script(click, "FGE") == "true"
    assert {m: marks(browser, m) for m in before} == before


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_names_of_a_front_are_in_the_chart_and_on_nothing_else(
    browser: Any, page_of_forms: Path, width: int
) -> None:
    opened(browser, page_of_forms, width)
    charts = browser.execute_script("""
        const box = (node) => {
            const { left, top, right, bottom } = node.getBoundingClientRect();
            return [left, top, right, bottom];
        };
        const all = (svg, selector) => [...svg.querySelectorAll(selector)];
        return [...document.querySelectorAll('[data-panel^="run-1-tradeoff"] svg')].map(svg => ({
            chart: box(svg),
            axis: box(svg.querySelector('line.axis')),
            names: all(svg, '.name').map(node => ({ text: node.textContent, at: box(node) })),
            marks: all(svg, 'g[data-method]:not([data-method=""]) > path[transform]').map(box),
        }))
    """)
    assert len(charts) == 4
    assert [name["text"] for name in charts[0]["names"]][:3] == ["SWA int8", "PFGE 1 bit", "PFGE 3 bits"]
    for chart in charts:
        names = [name["at"] for name in chart["names"]]
        assert all(left >= chart["axis"][0] and right <= chart["chart"][2] for left, _, right, _ in names)
        assert all(top >= chart["chart"][1] and bottom <= chart["axis"][3] + 2 for _, top, _, bottom in names)
        # A line of text is a few pixels higher than its letters.
        assert not any(_overlap(one, other, 3) for one, other in combinations(names, 2))
        assert not any(_overlap(name, mark, 3) for name in names for mark in chart["marks"])


def _overlap(one: list[float], other: list[float], slack: float) -> bool:
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    return across > slack and down > slack


def test_a_pointer_on_a_form_says_which_it_is(browser: Any, page_of_forms: Path) -> None:
    opened(browser, page_of_forms, DESKTOP)
    place = place_of(browser, "w0")
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **place})
    assert (
        tip(browser) == "w0, int8 base\naccuracy, %: 90.25 ± 0.25\nmemory at test time, bytes: 0.25× 250 kB"
    )


def test_dark_and_light_are_the_readers_choice(browser: Any, page: Path) -> None:
    script = "return getComputedStyle(document.body).backgroundColor"
    mark = "return getComputedStyle(document.querySelector('g[data-method=PFGE]')).color"
    opened(browser, page, DESKTOP, "light")
    assert browser.execute_script(script) == "rgb(251, 251, 249)"
    assert browser.execute_script(mark) == "rgb(213, 94, 0)"
    opened(browser, page, DESKTOP, "dark")
    assert browser.execute_script(script) == "rgb(20, 23, 28)"
    assert browser.execute_script(mark) == "rgb(255, 127, 42)"


def test_another_width_draws_the_charts_anew(browser: Any, page: Path) -> None:
    opened(browser, page, DESKTOP)
    width = "return document.querySelector('svg.plot').viewBox.baseVal.width"
    wide = browser.execute_script(width)
    size = {"width": PHONE, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert browser.execute_script(width) < wide


def test_a_name_with_markup_is_only_a_name(browser: Any, page: Path) -> None:
    opened(browser, page, DESKTOP)
    assert browser.execute_script("return window.broken") is None
    assert browser.execute_script("return document.images.length") == 0
    names = "return [...document.querySelectorAll('svg .name')].map(node => node.textContent)"
    # The legend has the whole name, and the chart as much of it as there is room for.
    assert any(EVIL.startswith(name.rstrip("…")) and len(name) > 20 for name in browser.execute_script(names))
    legend = "return [...document.querySelectorAll('.legend button')].map(node => node.textContent.trim())"
    assert EVIL in browser.execute_script(legend)


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_page_makes_no_error_and_no_request(browser: Any, page: Path, width: int) -> None:
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what other tests left
    opened(browser, page, width)
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in requests
    # chrome: addresses are the browser's own, such as the icon of its tab.
    others = [url for url in requests if url != page.as_uri() and not url.startswith(("data:", "chrome:"))]
    assert others == []


def test_the_loss_plane_is_a_map_with_its_lowest_cell_darkest_and_members_where_they_are(
    browser: Any, page: Path
) -> None:
    opened(browser, page, DESKTOP)
    found = browser.execute_script("""
        const svg = document.querySelector('[data-panel="run-1-landscape/0"] svg');
        const box = (node) => {
            const { left, top, right, bottom } = node.getBoundingClientRect();
            return [left, top, right, bottom];
        };
        const middle = (node) => {
            const [left, top, right, bottom] = box(node);
            return [(left + right) / 2, (top + bottom) / 2];
        };
        const light = (cell) => cell.getAttribute('fill').match(/[0-9]+/g).reduce((a, b) => a + +b, 0);
        const cells = [...svg.querySelectorAll('.cells rect')].sort((a, b) => light(a) - light(b));
        return {
            map: box(svg.querySelector('.cells')),
            cells: cells.length,
            darkest: middle(cells[0]),
            members: [...svg.querySelectorAll('g[data-method=PFGE] .outline')].map(middle),
            names: [...svg.querySelectorAll('.name')].map(node => node.textContent),
            label: svg.getAttribute('aria-label'),
        };
    """)
    left, top, right, bottom = found["map"]
    side = right - left
    assert side == pytest.approx(bottom - top, abs=1)
    assert found["cells"] == 64  # four times four for each of the grid's four cells
    assert found["darkest"] == pytest.approx([left + side / 2, top + side / 2], abs=side / 8)  # 0.1 is there
    # (0, 0) is at the left edge, half-way up; (2, 1) is the upper right corner.
    assert found["members"][0] == pytest.approx([left, top + side / 2], abs=2)
    assert found["members"][2] == pytest.approx([right, top], abs=2)
    assert found["names"] == ["w0", "SWA", "1", "2", "3"]
    assert found["label"].startswith("training loss, plane through members 1, 2, 3, from 0.1 to 4: ")


def test_a_hidden_method_takes_its_names_off_the_loss_plane(browser: Any, page: Path) -> None:
    opened(browser, page, DESKTOP)
    click = "document.querySelector('[data-legend=\"run-1-landscape\"] [data-toggles=SWA]').click()"
    browser.execute_script(click)
    names = """
        const found = document.querySelectorAll('[data-panel="run-1-landscape/0"] .name');
        return [...found].map(node => node.textContent);
    """
    assert browser.execute_script(names) == ["w0", "1", "2", "3"]
