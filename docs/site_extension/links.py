"""Links of pages to files of the repository, as the site has them.

Tutorials are pages, other files outside of docs/ are downloads, and folders are only named.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:]+)\)")
ON_THE_SITE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}


def adapt_links(app: Sphinx, docname: str, source: list[str]) -> None:
    """Point links to files that are no pages to what the site has of them."""
    folder = (app.srcdir / docname).parent

    def adapted(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = (folder / target).resolve()
        if path.parent == TUTORIALS:
            return f"[{text}](/gallery/{'index' if path.stem == 'README' else path.stem}.rst)"
        if path.is_relative_to(app.srcdir) or not path.exists():
            return match.group()
        name = path.relative_to(ROOT).as_posix()
        if page := ON_THE_SITE.get(name):
            return f"[{text}](/{page})"
        return f"{{download}}`{text} <{target}>`" if path.is_file() else f"`{name}`"

    source[0] = LINK.sub(adapted, source[0])


def setup(app: Sphinx) -> None:
    """Adapt every page as it is read."""
    app.connect("source-read", adapt_links)
