"""The table of plans: which ensembles fit into a memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pfge.methods import METHODS
from pfge.reports.tables.cells import Count, Missing, Text
from pfge.reports.tables.table import Table, columns, method_row

if TYPE_CHECKING:
    from pfge.lab.planner import Plan

NOTE = (
    "Bytes of the members, by pfge compress --small-bits 16; one more model is in memory while they "
    "predict. While training: a mean, and the members unless a folder takes them."
)


def plans_table(plans: Sequence["Plan"], title: str) -> Table:
    """Return a row for each plan."""
    rows = [
        method_row(
            plan.method,
            Count(plan.members),
            Count(plan.setting.cycle),
            Count(plan.setting.period) if METHODS[plan.method].members == "period" else Missing(),
            Text(plan.format.name),
            Count(plan.nbytes),
            Count(plan.training_bytes, signed=True),
        )
        for plan in plans
    ]
    heads = columns("method", "K", "c", "P", "stored as", "bytes", "while training")
    return Table("plans", title, heads, rows, [NOTE])
