"""What is wrong with a built site in a browser: wide pages, errors, what is hard to read or to find."""

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, product
from pathlib import Path
from typing import Any

from site_browser import DESKTOP, PHONE, emulate, find_serious

READ_CLOSELY = ("index.html", "choose.html", "methods/PFGE.html")
"""Pages on which axe-core looks for what is hard to read: the first, one of tables, one of formulas."""
WIDTH = "return document.documentElement.scrollWidth"
FIND = """
    const shown = (name) => Search._performSearch(...Search._parseQuery(name.split('.').pop()));
    return arguments[0].filter(name => !shown(name).some(result => result[1] === name));
"""
"""The names that no result of a search for their last part has."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a site to this machine alone, as browsers let files of a folder not read each other."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def seen_problems(browser: Any, address: str, pages: Sequence[str], names: Collection[str]) -> Iterator[str]:
    """Yield what a reader would see: at two widths, in two color schemes, and searching for public names."""
    # Every second page begins at the width at which the one before ended: changing it takes long.
    orders = cycle(((DESKTOP, PHONE), (PHONE, DESKTOP)))
    emulate(browser, DESKTOP)
    for page, widths in zip(pages, orders, strict=False):
        browser.get(f"{address}/{page}")
        for width in widths:
            emulate(browser, width)
            if (found := browser.execute_script(WIDTH)) > width:
                yield f"{page} is {found} pixels wide in a window of {width}"
        yield from errors(browser, page)
    for page in (page for page in READ_CLOSELY if page in pages):
        browser.get(f"{address}/{page}")
        for width, scheme in product((PHONE, DESKTOP), ("light", "dark")):
            emulate(browser, width, scheme)
            serious = find_serious(browser, only_colors=scheme == "dark")
            yield from (f"{page} at {width}, {scheme}: {found}" for found in serious)
    yield from unfindable_names(browser, address, names)


def errors(browser: Any, page: str) -> Iterator[str]:
    """Yield what scripts of the page failed with since the last call."""
    for entry in browser.get_log("browser"):
        if entry["level"] == "SEVERE":
            yield f"{page}: {entry['message']}"


def unfindable_names(browser: Any, address: str, names: Collection[str]) -> Iterator[str]:
    """Yield the names that a search of the site does not find."""
    browser.get(f"{address}/search.html?q=pfge")
    for name in browser.execute_script(FIND, sorted(names)):
        yield f"{name} is not found by a search for its last part"
