"""What a browser would find in a page."""

import json
from html.parser import HTMLParser
from typing import Any


class Read(HTMLParser):
    """What a browser would find in a page: the tags, their attributes, the visible text, the data."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = [("", {})]
        self.text = ""
        self.data: dict[str, Any] = {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1]
        if attributes.get("type") == "application/json" and not self.data:
            self.data = json.loads(data)
        elif tag not in ("script", "style"):
            self.text += data

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.tags)
