"""What a browser says about a built site."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import check_site
import look_at_site
import pytest
from site_browser import DESKTOP, PHONE, started_browser

from tests.reports.browsing import needs_browser

GOOD = """<!doctype html><html lang=en><meta charset=utf-8><link rel=icon href="data:,"><title>x</title>
<meta name=viewport content="width=device-width"><main>"""
SEARCH = """<script>
    const Search = {
        _parseQuery: (query) => [query],
        _performSearch: (query) => query === 'PFGE' ? [['api/pfge', 'pfge.PFGE']] : [],
    };
</script>"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as driver:
        yield driver


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text(f"{GOOD}<h1>A page</h1><p>of a few words")
    (tmp_path / "search.html").write_text(f"{GOOD}{SEARCH}")
    return tmp_path


def look(browser: Any, site: Path, *names: str) -> list[str]:
    pages = sorted(path.name for path in site.glob("*.html"))
    with look_at_site.served(site) as address:
        return list(look_at_site.seen_problems(browser, address, pages, names))


@needs_browser
def test_a_good_site_has_nothing_to_see(browser: Any, site: Path) -> None:
    assert look(browser, site, "pfge.PFGE") == []


@needs_browser
def test_a_page_that_is_too_wide_is_named_at_each_width(browser: Any, site: Path) -> None:
    (site / "wide.html").write_text(f"{GOOD}<div style='width: 1000px'>wide</div>")
    (site / "wider.html").write_text(f"{GOOD}<div style='width: 2000px'>wider</div>")
    wide, *wider = look(browser, site)
    assert wide.startswith("wide.html is 10")
    assert wide.endswith(f"in a window of {PHONE}")
    assert {line.rpartition(" ")[2] for line in wider} == {str(PHONE), str(DESKTOP)}


@needs_browser
def test_a_script_that_fails_is_named(browser: Any, site: Path) -> None:
    (site / "wrong.html").write_text(f"{GOOD}<script>missing()</script>")
    (found,) = look(browser, site)
    assert found.startswith("wrong.html: ")
    assert "missing is not defined" in found


@needs_browser
def test_pale_text_is_found_in_light_and_dark(browser: Any, site: Path) -> None:
    (site / "index.html").write_text(f"{GOOD}<h1>A page</h1><p>dark<p style='color: #ccc'>pale")
    found = look(browser, site)
    assert len(found) == 4
    assert found[0].startswith(f"index.html at {PHONE}, light: color-contrast")
    assert all(">pale" in line and ">dark" not in line for line in found)


@needs_browser
def test_a_name_that_a_search_does_not_find_is_named(browser: Any, site: Path) -> None:
    assert look(browser, site, "pfge.PFGE", "pfge.SWA", "pfge.swag.PFGE") == [
        "pfge.SWA is not found by a search for its last part",
        "pfge.swag.PFGE is not found by a search for its last part",
    ]


@pytest.mark.slow
def test_without_a_browser_this_is_said(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_site, "CHROMIUM", None)
    assert list(check_site.in_browser(site)) == []
    assert capsys.readouterr().err.startswith("the pages were not looked at: that needs chromium")
