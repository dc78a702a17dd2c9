"""How tests look at a page in a browser."""

from pathlib import Path
from typing import Any

import pytest
from site_browser import CHROMIUM, DESKTOP, DRIVER, NEEDED, PHONE, emulate

__all__ = ["DESKTOP", "EVIL", "PHONE", "needs_browser", "opened"]

needs_browser = pytest.mark.skipif(not CHROMIUM or not DRIVER, reason=NEEDED)
EVIL = "<script><img src=x onerror=window.broken=1><b>mine"


def opened(browser: Any, page: Path, width: int, scheme: str = "light") -> Any:
    """Open the page anew, in a window of a width."""
    emulate(browser, width, scheme)
    browser.get(page.as_uri())
    return browser
