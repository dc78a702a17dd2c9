"""The table of formats: what each ensemble takes and is worth compressed and not, whole and as a cascade."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pfge.reports.tables.comparison import Number, Row, by_method
from pfge.reports.tables.table import Table

UNPACKED = "float32"
COLUMNS = ("method", "stored as", "cascade", "bytes", "memory", "passes", "accuracy %", "NLL", "KL")
NOTE = (
    "memory relative to one float32 model; passes: members that an example asks, in the mean; KL: to the "
    "same members as float32, all asked."
)


@dataclass(frozen=True)
class FormatRow:
    """One method in one format over all its seeds; `kl` is None where it was not measured."""

    method: str
    format: str
    cascade: bool
    bytes: int
    relative_bytes: float
    passes: Number
    accuracy: Number
    nll: Number
    kl: Number | None

    @classmethod
    def of_method(cls, row: Row) -> "FormatRow":
        """Return a method as the comparison measured it: its members as they are, all of them asked."""
        passes = Number(float(row.members), None)
        return cls(
            row.method, UNPACKED, False, row.bytes, row.relative_bytes, passes, row.accuracy, row.nll, None
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is as the comparison has it: members as they are, all of them asked."""
        return self.format == UNPACKED and not self.cascade

    @property
    def name(self) -> str:
        """Method, format and cascade, for people."""
        return ", ".join([self.method, self.format, *["cascade"] * self.cascade])


def summarize_formats(results: Sequence[dict[str, Any]]) -> list[FormatRow]:
    """Return a row for each method, format and cascade, those of a method together."""
    rows = []
    for method, of_method in by_method(results).items():
        kinds: dict[tuple[str, bool], list[dict[str, Any]]] = {}
        for result in of_method:
            kinds.setdefault((result["format"], result["cascade"]), []).append(result)
        rows += [_row(method, stored_as, cascade, found) for (stored_as, cascade), found in kinds.items()]
    return rows


def format_table(results: Sequence[dict[str, Any]]) -> Table:
    """Return the table of all formats."""
    seeds = len({result["seed"] for result in results})
    about = f"mean ± standard error over {seeds} seeds; " if seeds > 1 else ""
    cascades = "" if any(result["cascade"] for result in results) else " No cascades without validation data."
    return Table(
        "formats", COLUMNS, [_cells(row) for row in summarize_formats(results)], about + NOTE + cascades
    )


def _row(method: str, stored_as: str, cascade: bool, results: Sequence[dict[str, Any]]) -> FormatRow:
    first = results[0]
    return FormatRow(
        method,
        stored_as,
        cascade,
        first["bytes"],
        first["bytes"] / first["bytes_of_one"],
        Number.of([result["mean_members"] for result in results]),
        Number.of([result["test"]["accuracy"] for result in results]),
        Number.of([result["test"]["nll"] for result in results]),
        Number.of([result["kl"] for result in results]),
    )


def _cells(row: FormatRow) -> list[str]:
    return [
        row.method,
        row.format,
        "yes" if row.cascade else "",
        f"{row.bytes:,}",
        f"{row.relative_bytes:.3g}x",
        row.passes.show(2) if row.cascade else f"{row.passes.mean:g}",
        row.accuracy.scaled(100).show(2),
        row.nll.show(4),
        "" if row.kl is None else row.kl.show(5),
    ]
