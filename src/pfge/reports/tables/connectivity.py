"""The tables of connectivity: what lies between adjacent members, for each method."""

from collections.abc import Callable, Sequence

from pfge.connectivity.tracing import mode_connectivity
from pfge.lab.run.results import ConnectivityRow
from pfge.reports.statistics import Estimate, by_method
from pfge.reports.tables.cells import Count, Number
from pfge.reports.tables.table import Table, columns, method_row

NOTE = "mean over pairs, ± standard error if there are two or more"
SIGNS = ("below 0: a barrier", "near 0: connected", "above 0: the inside is better than the ends")

Value = Callable[[ConnectivityRow], float]


def connectivity_tables(rows: Sequence[ConnectivityRow]) -> list[Table]:
    """Return the paper's three: test error and training loss along the curves, and mode connectivity."""
    connectivity: dict[str, Value] = {
        "training loss": lambda row: mode_connectivity(row.trace),
        "with penalty": _penalized_connectivity,
        "training error": lambda row: mode_connectivity(row.trace, "train_error"),
    }
    along_error, along_loss = _along("test_error", 100), _along("train_loss", 1)
    return [
        _table(rows, "test-error", "test error along the curve, %", along_error, 2),
        _table(rows, "training-loss", "training loss along the curve", along_loss, 5),
        _table(rows, "connectivity", "mode connectivity", connectivity, 5, SIGNS),
    ]


def _table(
    rows: Sequence[ConnectivityRow],
    key: str,
    title: str,
    values: dict[str, Value],
    digits: int,
    more_notes: Sequence[str] = (),
) -> Table:
    found = []
    for method, pairs in by_method(rows).items():
        estimates = [Estimate.of([value(pair) for pair in pairs]) for value in values.values()]
        numbers = [Number.of(estimate, digits) for estimate in estimates]
        found.append(method_row(method, Count(len(pairs)), *numbers))
    return Table(key, title, columns("method", "pairs", *values), found, [NOTE, *more_notes])


def _along(quantity: str, factor: float) -> dict[str, Value]:
    def value(name: str) -> Value:
        return lambda row: factor * float(getattr(row.trace.statistics(quantity), name))

    return {name: value(name) for name in ("max", "min", "mean")}


def _penalized_connectivity(row: ConnectivityRow) -> float:
    return mode_connectivity(row.trace.with_penalty("train_loss", row.settings.weight_decay))
