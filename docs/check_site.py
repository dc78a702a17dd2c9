"""Check a built site: no dead internal link, nothing from a network, every public name can be found.

If there is a browser, it opens every page at the width of a phone and of a desktop. Run it with
`python docs/check_site.py docs/_build/html`; `make docs` does. It prints what is wrong, a line each, and ends
with exit code 1 if something is.
"""

import sys
from collections.abc import Collection, Iterator
from html.parser import HTMLParser
from importlib import import_module
from inspect import ismodule
from pathlib import Path
from urllib.parse import unquote, urlsplit

from look_at_site import seen_problems, served
from site_browser import CHROMIUM, DRIVER, NEEDED, started_browser
from sphinx.util.inventory import InventoryFile

BESIDE = ("pfge.cascade", "pfge.export", "pfge.methods")
"""Public modules that `import pfge` does not make available."""
LOADED = {"img": "src", "script": "src", "source": "src", "iframe": "src"}


class Page(HTMLParser):
    """The addresses that a page links to or loads, and the places in it that can be linked to."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag refers to."""
        found = {name: value or "" for name, value in attrs}
        self.places |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(found.get("href", ""))
        if tag in LOADED and found.get(LOADED[tag]):
            self.loaded.append(found[LOADED[tag]])


def problems(site: Path) -> Iterator[str]:
    """Yield what is wrong with the pages of a site."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in _pages(site)}
    for path, page in pages.items():
        name = path.relative_to(site)
        for address in page.loaded:
            if urlsplit(address).netloc:
                yield f"{name} loads {address}, which needs a network"
        for address in (*page.links, *page.loaded):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                yield f"{name} links to {address}, which does not exist"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
                yield f"{name} links to {address}, and there is no such place on that page"


def public_names() -> set[str]:
    """Return the public modules and the names in their `__all__`."""
    package = import_module("pfge")
    own = [f"pfge.{name}" for name in package.__all__ if ismodule(getattr(package, name))]
    modules = ["pfge", *own, *BESIDE]
    return {f"{module}.{name}" for module in modules for name in import_module(module).__all__} | {*modules}


def inventory(site: Path) -> set[str]:
    """Return the names that the search of a site knows."""
    found = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    return {name for kind, names in found.items() if kind.startswith("py:") for name in names}


def missing_names(found: Collection[str]) -> Iterator[str]:
    """Yield the public names that an inventory has not."""
    for name in sorted(public_names() - set(found)):
        yield f"{name} cannot be found: it is in no page of docs/api"


def _pages(site: Path) -> list[Path]:
    # Those in _static are templates of the theme.
    return [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]


def in_browser(site: Path) -> Iterator[str]:
    """Yield what a browser finds; nothing, and a line on standard error, if there is none."""
    if not CHROMIUM or not DRIVER:
        print(f"the pages were not looked at: that {NEEDED}", file=sys.stderr)
        return
    pages = [page.relative_to(site).as_posix() for page in _pages(site)]
    with served(site) as address, started_browser() as browser:
        yield from seen_problems(browser, address, pages, public_names())


def main(site: Path) -> int:
    """Print what is wrong and return the exit code."""
    found = [*problems(site), *missing_names(inventory(site)), *in_browser(site)]
    print(*found, sep="\n", end="\n" * bool(found))
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).resolve()))
