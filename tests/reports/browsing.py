"""How tests look at a page in a browser."""

import shutil
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not CHROMIUM or not DRIVER,
    reason="needs chromium and chromedriver; on Debian: apt-get install chromium chromium-driver",
)

EVIL = "<script><img src=x onerror=window.broken=1><b>mine"
PHONE, DESKTOP = 390, 1280


def opened(browser: Any, page: Path, width: int, scheme: str = "light") -> Any:
    """Open the page anew, in a window of a width."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.as_uri())
    return browser
