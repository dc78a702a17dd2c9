"""A headless browser that looks at pages, in sizes and color schemes, and finds what is hard to read."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
NEEDED = "needs chromium and chromedriver; on Debian: apt-get install chromium chromium-driver"
PHONE, DESKTOP = 390, 1280
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
FIND_SERIOUS = """
    const [onlyColors, done] = arguments;
    const CONTRAST = 'color-contrast';
    const ground = (node, of = getComputedStyle(node)) => node.parentElement
        ? `${ground(node.parentElement)} ${of.backgroundColor} ${of.backgroundImage} ${of.opacity}` : '';
    const grounds = new Map();
    const look = (node) => {
        const of = getComputedStyle(node), parent = node.parentElement;
        if (!grounds.has(parent)) grounds.set(parent, ground(parent));
        return [grounds.get(parent), of.backgroundColor, of.backgroundImage, of.opacity, of.color, of.fill,
            of.fontSize, of.fontWeight, of.position].join();
    };
    const hasText = (node) => [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
    const texts = [...document.body.querySelectorAll('*')].filter(
        node => hasText(node) && node.checkVisibility() && !node.closest('script, style'));
    const looks = [...new Map(texts.map(node => [look(node), node])).values()];
    const options = { resultTypes: ['violations'] };
    const runs = [
        [document, { ...options, rules: { [CONTRAST]: { enabled: false } } }],
        [{ include: looks }, { ...options, runOnly: { type: 'rule', values: [CONTRAST] } }],
    ];
    (async () => {
        const found = [];
        for (const run of runs.slice(onlyColors)) found.push(...(await axe.run(...run)).violations);
        done(found.filter(rule => ['serious', 'critical'].includes(rule.impact)).map(
            rule => `${rule.id}: ${rule.nodes.slice(0, 3).map(node => node.html.slice(0, 120)).join(' ')}`
        ));
    })().catch(error => done([String(error)]));
"""
"""Contrast takes long to measure, so that it is measured once for texts of one look on one ground."""


@contextmanager
def started_browser(*, logs_requests: bool = False) -> Iterator[Any]:
    """Start a browser with a profile of its own, and end it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    logs = {"browser": "ALL"} | ({"performance": "ALL"} if logs_requests else {})
    options.set_capability("goog:loggingPrefs", logs)
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        driver.set_script_timeout(120)  # seconds; a busy machine is slow
        try:
            yield driver
        finally:
            driver.quit()


def emulate(browser: Any, width: int, scheme: str = "light", media: str = "") -> None:
    """Give the window a width, a color scheme and a medium, without loading the page again."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features, "media": media})


def find_serious(browser: Any, *, only_colors: bool = False) -> list[str]:
    """Return what axe-core calls serious or critical on the page as it is now, or only what colors decide."""
    if not browser.execute_script("return 'axe' in window"):
        browser.execute_script(_axe())
    found: list[str] = browser.execute_async_script(FIND_SERIOUS, int(only_colors))
    return found


@cache
def _axe() -> str:
    import axe_core_python

    return (Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
