"""Measured numbers of methods: from recorded runs, and from the tables that docs/results.md has."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pfge.lab.run.results import ComparisonRow
from pfge.methods import START, base_of
from pfge.reports.run import Run
from pfge.reports.statistics import Estimate, by_method, measured

DOCS = Path(__file__).parents[1]
RECORDED = DOCS / "recorded"
RESULTS = DOCS / "results.md"
NO_NUMBER = "–"


@dataclass(frozen=True)
class Quality:
    """How good one row of a comparison was, as text for a table."""

    where: str
    row: str
    members: str
    memory: str
    metric: str
    nll: str
    calibrated_nll: str


@dataclass(frozen=True)
class Gain:
    """What a row of a recorded run cost, and how it differs from w0, over seeds."""

    row: str
    members: int
    memory: float
    training: float | None
    accuracy: Estimate
    nll: Estimate
    calibrated_nll: Estimate


@cache
def recorded_run(name: str) -> Run:
    """Return a run of docs/recorded, of which everything can be read."""
    run = Run(RECORDED / name)
    if not run.results or run.left_out or run.missing():
        raise ValueError(f"{run.folder.path} must be a finished run, got {run.left_out or run.missing()}")
    return run


def gains(run: Run) -> list[Gain]:
    """Return what each row cost and gained, differences being from w0 of the same seed."""
    rows = by_method(run.results)
    start = {row.seed: row for row in rows.pop(START)}
    of_w0 = _iterations_of_w0(run.results)

    def change(of_row: Sequence[ComparisonRow], metric: str, part: str, factor: float = 1) -> Estimate:
        def value(row: ComparisonRow) -> float:
            return (measured(row, part) or {})[metric]

        return Estimate.of([value(row) - value(start[row.seed]) for row in of_row]).scaled(factor)

    return [
        Gain(
            name,
            of_row[0].members,
            of_row[0].bytes / of_row[0].bytes_of_one,
            of_row[0].iterations / of_w0 if of_w0 else None,
            change(of_row, "accuracy", "test", 100),
            change(of_row, "nll", "test"),
            change(of_row, "nll", "test.calibrated"),
        )
        for name, of_row in rows.items()
    ]


def _iterations_of_w0(rows: Sequence[ComparisonRow]) -> float | None:
    """Return how long w0 was trained, which rows of several trainings tell: all but the first are extra."""
    return next((row.iterations / (row.trainings - 1) for row in rows if row.trainings > 1), None)


def qualities(method: str) -> list[Quality]:
    """Return what was measured of a method and of its last members, everywhere, with w0 beside it."""
    found = [*recorded_qualities(), *read_qualities(RESULTS.read_text())]
    places = {quality.where for quality in found if base_of(quality.row) == method}
    return [q for q in found if q.where in places and base_of(q.row) in (method, START)]


def recorded_qualities() -> Iterator[Quality]:
    """Yield the rows of all recorded runs."""
    for folder in sorted(path for path in RECORDED.iterdir() if path.is_dir()):
        run = recorded_run(folder.name)
        for row, of_row in by_method(run.results).items():

            def estimate(metric: str, part: str, rows: list[ComparisonRow] = of_row) -> Estimate:
                return Estimate.of([(measured(each, part) or {})[metric] for each in rows])

            yield Quality(
                "[MNIST-1D, one rate for all](/all-methods.md)",
                row,
                str(of_row[0].members),
                f"{of_row[0].bytes / of_row[0].bytes_of_one:.3g}x",
                f"{show(estimate('accuracy', 'test').scaled(100), 2)} %",
                show(estimate("nll", "test"), 4),
                show(estimate("nll", "test.calibrated"), 4),
            )


def show(estimate: Estimate, digits: int, *, signed: bool = False) -> str:
    """Return a mean with its standard error."""
    sign = "+" if signed else ""
    error = "" if estimate.error is None else f" ± {estimate.error:.{digits}f}"
    return f"{estimate.mean:{sign}.{digits}f}{error}"


def read_qualities(page: str) -> Iterator[Quality]:
    """Yield the rows of the tables of methods in a page, the first of each section."""
    for title, tables in _sections(page):
        methods = _first_with(tables, {"method", "members", "memory", "NLL"})
        calibration = _first_with(tables, {"method", "NLL at T"})
        at = {row["method"]: row["NLL at T"] for row in calibration}
        link = f"[{title.partition(':')[0]}](/results.md#{_anchor(title)})"
        for row in methods:
            metric = list(row)[4]
            unit = "%" if metric.endswith("%") else metric
            yield Quality(
                link,
                row["method"],
                row["members"],
                row["memory"],
                f"{row[metric]} {unit}",
                row["NLL"],
                at.get(row["method"], NO_NUMBER),
            )


def _first_with(tables: list[list[dict[str, str]]], heads: set[str]) -> list[dict[str, str]]:
    return next((table for table in tables if heads <= table[0].keys()), [])


def _sections(page: str) -> Iterator[tuple[str, list[list[dict[str, str]]]]]:
    _, *parts = re.split(r"^#{2,4} (.*)$", page, flags=re.MULTILINE)
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        blocks = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
        yield title, [table for table in map(_rows, blocks) if table]


def _rows(block: str) -> list[dict[str, str]]:
    head, _, *lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines()]
    return [
        dict(zip(head, (cell.replace("\\*", "*").removesuffix(" ▲") for cell in line), strict=True))
        for line in lines
    ]


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
