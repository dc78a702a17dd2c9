"""What `python -m benchmarks.shipped` measured: docs/recorded/shipped.json has the last line of each run."""

import json
from typing import Any, NamedTuple

from site_extension.recorded import RECORDED

SHIPPED = "shipped"
NOT_YET = "No measurement has been recorded."


class Column(NamedTuple):
    """How a value of a row is shown."""

    key: str
    head: str
    form: str = "{}"
    factor: float | None = None

    def show(self, row: dict[str, Any]) -> str:
        """Return the cell."""
        value = row[self.key]
        return self.form.format(value if self.factor is None else self.factor * value)


COLUMNS = (
    Column("ensemble", "ensemble"),
    Column("form", "stored as"),
    Column("bytes", "bytes of all files", "{:,}"),
    Column("size", "of one model", "{:.3f}x"),
    Column("kl", "KL", "{:.5f}"),
    Column("accuracy", "accuracy %", "{:.2f}", 100),
    Column("accuracy_change", "change", "{:+.2f}", 100),
    Column("nll", "NLL", "{:.4f}"),
    Column("nll_change", "change", "{:+.4f}"),
)
TEXTS = 2
"""The first columns are words, the others numbers."""


def shipped_text() -> str:
    """Return a table for each line of the file."""
    file = RECORDED / f"{SHIPPED}.json"
    lines = file.read_text().splitlines() if file.is_file() else []
    return "\n\n".join(table_of(json.loads(line)) for line in lines) or NOT_YET


def table_of(found: dict[str, Any]) -> str:
    """Return the table of one ensemble, and what holds for all of its rows."""
    align = ["---"] * TEXTS + ["---:"] * (len(COLUMNS) - TEXTS)
    rows = [[column.show(row) for column in COLUMNS] for row in found["rows"]]
    lines = [f"| {' | '.join(line)} |" for line in ([column.head for column in COLUMNS], align, *rows)]
    about = (
        f"{found['members']} members, {found['images']}; what is chosen is chosen on "
        f"{found['validation_images']} validation images. Changes and KL are those from float32."
    )
    return "\n".join([*lines, "", about])
