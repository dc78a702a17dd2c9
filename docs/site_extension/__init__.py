"""What the site has beyond Sphinx: cards of methods, measured numbers, the API, formulas, links."""

from typing import Any

from sphinx.application import Sphinx

from site_extension import api, cards, links, mathml


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything with Sphinx."""
    for part in (api, cards, links, mathml):
        part.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
