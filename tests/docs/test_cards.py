"""Every method has a card, and a card answers the same questions."""

from types import SimpleNamespace

import pytest
from site_extension import cards
from sphinx.errors import ExtensionError

from pfge.methods import METHODS, Method
from tests.readme_blocks import DOCS

QUESTIONS = ["Formula", "When it helps", "When it hurts", "Cost", "Settings we suggest", "Measured here"]


@pytest.mark.parametrize("name", METHODS)
def test_a_card_answers_every_question(name: str) -> None:
    text = cards.card_of(DOCS, name).read_text()
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == QUESTIONS
    assert f"```{{method-card}} {name}\n" in text
    assert f"```{{measured}} {name}\n" in text
    assert cards.read_card(DOCS, name)["choose"]


def test_every_card_is_of_a_method() -> None:
    assert sorted(path.stem for path in (DOCS / "methods").glob("*.md")) == sorted([*METHODS, "index"])


def test_a_method_without_a_card_stops_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = Method("Bare", description="A method that nobody described.", source="", path="trainings")
    monkeypatch.setitem(METHODS, bare.name, bare)
    with pytest.raises(ExtensionError, match=r"docs/methods/Bare\.md"):
        cards.require_cards(SimpleNamespace(srcdir=DOCS))
