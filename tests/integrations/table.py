"""The table of docs/trainers.md: which law holds for which integration.

`python -m tests.integrations.table` runs the laws and writes what it found.
"""

from collections.abc import Collection
from pathlib import Path

import pytest

import pfge.integrations.accelerate
import pfge.integrations.lightning
import pfge.integrations.transformers
from tests.integrations import test_conformance
from tests.integrations.adapters import ADAPTERS

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
BEGIN, END = "<!-- laws -->\n", "<!-- end of laws -->"
TESTED = {
    "lightning": pfge.integrations.lightning.TESTED,
    "transformers": pfge.integrations.transformers.TESTED,
    "accelerate": pfge.integrations.accelerate.TESTED,
}


class Failures:
    """Notes, as a plugin of pytest, the tests that did not pass."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.tests.append(report.nodeid)


def render(failed: Collection[str]) -> str:
    """Return the table in Markdown, given the tests of laws that did not pass."""
    names = [adapter.name for adapter in ADAPTERS]
    rows = [["law", *names], ["---", *(":---:" for _ in names)]]
    for test in vars(test_conformance):
        if test.startswith("test_"):
            broken = [each for each in failed if f"::{test}[" in each]
            held = ["no" if any(each.endswith(f"{name}]") for each in broken) else "yes" for name in names]
            rows.append([test.removeprefix("test_").replace("_", " "), *held])
    rows.append(["tested versions", *(" to ".join(TESTED.get(name.split(",")[0], ())) for name in names)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def shown() -> str:
    """Return the table that the page shows."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    failures = Failures()
    imported_before = "ignore::pytest.PytestAssertRewriteWarning"
    pytest.main(["-q", "-W", imported_before, test_conformance.__file__], plugins=[failures])
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + render(failures.tests) + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
