"""What `python -m benchmarks.shipped` measured: docs/recorded/shipped.json, the last line that it printed."""

import json
from typing import Any

from site_extension.recorded import RECORDED

SHIPPED = "shipped"
NOT_YET = "No measurement has been recorded."


def shipped_text() -> str:
    """Return the rows as a table, and below it what holds for all of them."""
    file = RECORDED / f"{SHIPPED}.json"
    return table_of(json.loads(file.read_text())) if file.is_file() else NOT_YET


def table_of(found: dict[str, Any]) -> str:
    """Return the table of an object that has rows, which are objects with the same keys, and facts."""
    rows = found["rows"]
    heads = list(rows[0])
    align = ["---" if isinstance(value, str) else "---:" for value in rows[0].values()]
    lines = [heads, align, *([_shown(row[head]) for head in heads] for row in rows)]
    facts = [f"{key}: {_shown(value)}" for key, value in found.items() if key != "rows"]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", "; ".join(facts)]).rstrip()


def _shown(value: str | float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.5g}" if isinstance(value, float) else str(value).replace("|", "\\|")
