"""The picture of the README shows a recorded run."""

import json
import re

import draw_memory
import pytest

from tests.readme_blocks import DOCS


def test_the_picture_of_the_readme_shows_the_results() -> None:
    points = draw_memory.read_points()
    rows = map(json.loads, (DOCS / "recorded" / draw_memory.RUN / "formats.jsonl").read_text().splitlines())
    found = [r for r in rows if (r["method"], r["format"], r["cascade"]) == ("PFGE", "float32", False)]
    assert points["PFGE", "float32"].memory == 4
    for name, factor in (("accuracy", 100), ("nll", 1)):
        mean = sum(row["test"][name] for row in found) / len(found)
        assert getattr(points["PFGE", "float32"], name) == pytest.approx(factor * mean)
    drawn = draw_memory.to_svg(draw_memory.draw(points))
    assert _numbers_and_words(drawn) == _numbers_and_words((DOCS / "memory.svg").read_text())


def _numbers_and_words(svg: str) -> list[str | float]:
    """Return what a picture shows: its texts, and its coordinates rounded, as fonts may differ a little."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    places = re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', svg)
    return [*texts, *(round(float(number) / 5) for place in places for number in place)]
