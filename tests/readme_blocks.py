"""The pages of the documentation, and the blocks of code in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENTS = [README, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md"))]
DOCS = ROOT / "docs"


def name_of(document: Path) -> str:
    """Return how a page is called in the names of tests."""
    return document.relative_to(ROOT).with_suffix("").as_posix()


def read_blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.DOTALL)
