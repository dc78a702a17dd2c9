"""The tables of connectivity: what lies between adjacent members, for each method."""

from collections.abc import Callable, Sequence
from typing import Any

from pfge.connectivity.tracing import CurveTrace, mode_connectivity
from pfge.reports.tables.comparison import Number, by_method
from pfge.reports.tables.table import Table

ABOUT = "mean over pairs, ± standard error if there are two or more"


def trace_of(result: dict[str, Any]) -> CurveTrace:
    """Return the trace that a line of results holds."""
    return CurveTrace(**result["trace"])


def connectivity_tables(results: Sequence[dict[str, Any]]) -> list[Table]:
    """Return the paper's three: test error and training loss along the curves, and mode connectivity."""
    return [
        _table(results, "test error along the curve, %", _along("test_error", 100), 2),
        _table(results, "training loss along the curve", _along("train_loss", 1), 5),
        _table(
            results,
            "mode connectivity",
            {
                "training loss": lambda result: mode_connectivity(trace_of(result)),
                "with penalty": _penalized_connectivity,
                "training error": lambda result: mode_connectivity(trace_of(result), "train_error"),
            },
            5,
            f"{ABOUT}; below 0: a barrier; near 0: connected; above 0: the inside is better than the ends",
        ),
    ]


Value = Callable[[dict[str, Any]], float]


def _table(
    results: Sequence[dict[str, Any]], title: str, values: dict[str, Value], digits: int, note: str = ABOUT
) -> Table:
    rows = [
        [method, str(len(pairs))]
        + [Number.of([value(result) for result in pairs]).show(digits) for value in values.values()]
        for method, pairs in by_method(results).items()
    ]
    return Table(title, ("method", "pairs", *values), rows, note)


def _along(quantity: str, factor: float) -> dict[str, Value]:
    def value(name: str) -> Value:
        return lambda result: factor * float(getattr(trace_of(result).statistics(quantity), name))

    return {name: value(name) for name in ("max", "min", "mean")}


def _penalized_connectivity(result: dict[str, Any]) -> float:
    trace = trace_of(result).with_penalty("train_loss", result["settings"]["weight_decay"])
    return mode_connectivity(trace)
