"""What of a run's files a report can use: other versions may write other keys, and people edit files."""

from math import isfinite
from typing import Any

from pfge.reports.tables.calibration import assessment_tables

METRICS = ("accuracy", "nll", "ece")
COUNTS = ("members", "bytes", "bytes_of_one")
TRACED = ("train_loss", "train_error", "test_error")


def whole_rows(results: list[Any], part: str = "test") -> list[dict[str, Any]]:
    """Return the results that have all that every table needs, without extras that only look right."""
    rows = [row for row in results if isinstance(row, dict) and _is_whole(row, part)]
    return [{key: value for key, value in row.items() if key not in _unusable(row, part)} for row in rows]


def whole_traces(results: list[Any]) -> list[dict[str, Any]]:
    """Return the curves between members that can be drawn."""
    return [row for row in results if isinstance(row, dict) and _is_trace(row)]


def whole_formats(results: list[Any]) -> list[dict[str, Any]]:
    """Return the formats of ensembles that tables and figures can show."""
    return [row for row in results if isinstance(row, dict) and _is_format(row)]


def is_whole_evaluation(found: dict[str, Any]) -> bool:
    """Tell whether an evaluation has the numbers that its tables show."""
    try:
        assessment_tables(found)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return _are_metrics(found["test"]) and isinstance(found.get("members"), int)


def _is_whole(row: dict[str, Any], part: str) -> bool:
    return (
        isinstance(row.get("method"), str)
        and all(type(row.get(key)) is int for key in ("seed", "iterations", *COUNTS))
        and all(row[key] > 0 for key in COUNTS)
        and _are_metrics(row.get(part))
    )


def _is_format(row: dict[str, Any]) -> bool:
    return (
        all(isinstance(row.get(key), str) for key in ("method", "format"))
        and type(row.get("cascade")) is bool
        and all(type(row.get(key)) is int for key in ("seed", *COUNTS))
        and all(row[key] > 0 for key in COUNTS)
        and all(_is_finite(row.get(key)) for key in ("mean_members", "kl"))
        and row["mean_members"] >= 1
        and _are_metrics(row.get("test"))
    )


def _unusable(row: dict[str, Any], part: str) -> set[str]:
    """Return the keys of what is there but not as a report needs it."""
    found = set()
    iterations = row.get("member_iterations")
    if not isinstance(iterations, list) or not all(type(iteration) is int for iteration in iterations):
        found |= {"member_iterations", "each", "growing"}  # samples, as SWAG's, have no iteration
    elif not all(_are_members(row.get(key), part, len(iterations)) for key in ("each", "growing")):
        found |= {"each", "growing"}
    calibrated, of_members = row.get("calibrated"), row.get("calibrated_members")
    if not (
        isinstance(calibrated, dict)
        and isinstance(of_members, dict)
        and _is_finite(calibrated.get("temperature"))
        and _are_metrics(calibrated.get(part))
        and _are_metrics(of_members.get(part))
    ):
        found |= {"calibrated", "calibrated_members"}
    return found


def _are_members(found: Any, part: str, count: int) -> bool:
    of_part = found.get(part) if isinstance(found, dict) else None
    return (
        isinstance(of_part, list)
        and len(of_part) == count
        and all(
            isinstance(m, dict) and _is_number(m.get("accuracy")) and _is_number(m.get("nll"))
            for m in of_part
        )
    )


def _is_trace(row: dict[str, Any]) -> bool:
    members, settings = row.get("members"), row.get("settings")
    match row.get("trace"):
        case {"t": [*t], "squared_norms": [*norms], "values": {**values}}:
            columns: list[Any] = [t, norms, *(values.get(name) for name in TRACED)]
        case _:
            return False
    return (
        isinstance(row.get("method"), str)
        and "seed" in row
        and isinstance(members, list)
        and len(members) == 2
        and all(isinstance(column, list) and len(column) == len(t) for column in columns)
        and all(_is_number(value) for column in columns for value in column or [])
        and isinstance(settings, dict)
        and _is_number(settings.get("weight_decay"))
    )


def _are_metrics(found: Any) -> bool:
    return isinstance(found, dict) and all(_is_finite(found.get(name)) for name in METRICS)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and isfinite(value)
