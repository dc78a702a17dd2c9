"""How tests look at a page in a browser."""

from pathlib import Path
from typing import Any

import pytest
from site_browser import CHROMIUM, DESKTOP, DRIVER, NEEDED, PHONE, emulate

__all__ = ["DESKTOP", "EVIL", "PHONE", "browser_marks", "needs_browser", "opened"]

browser_marks = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM or not DRIVER, reason=NEEDED)]
"""The marks of a test that opens pages in a browser, which takes seconds to start."""


def needs_browser(test: Any) -> Any:
    """Mark one test as the marks above mark a module."""
    for mark in browser_marks:
        test = mark(test)
    return test


EVIL = "<script><img src=x onerror=window.broken=1><b>mine"


def opened(browser: Any, page: Path, width: int, scheme: str = "light") -> Any:
    """Open the page anew, in a window of a width."""
    emulate(browser, width, scheme)
    browser.get(page.as_uri())
    return browser
