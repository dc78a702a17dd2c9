"""Measured numbers of methods, from recorded runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pfge.lab.run.results import ComparisonRow
from pfge.methods import START, base_of
from pfge.reports.run import Run
from pfge.reports.statistics import Estimate, by_method, measured, shown_metrics
from site_extension.recorded import is_recorded, recorded_run
from site_extension.run_texts import AS_PREDICTED, AT_TEMPERATURE

NO_NUMBER = "–"
ON_CARDS = {
    "mnist1d": "[MNIST-1D, one rate for all](/all-methods.md)",
    "digits": "[Digits](/results.md#digits)",
    "diabetes": "[Diabetes](/results.md#diabetes)",
    "cifar10-resnet20": "[CIFAR-10](/results.md#cifar-10)",
}
"""The recorded runs whose numbers cards show, and where the rest of each is."""


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
            change(of_row, "accuracy", AS_PREDICTED, 100),
            change(of_row, "nll", AS_PREDICTED),
            change(of_row, "nll", AT_TEMPERATURE),
        )
        for name, of_row in rows.items()
    ]


def _iterations_of_w0(rows: Sequence[ComparisonRow]) -> float | None:
    """Return how long w0 was trained, which rows of several trainings tell: all but the first are extra."""
    return next((row.iterations / (row.trainings - 1) for row in rows if row.trainings > 1), None)


def qualities(method: str) -> list[Quality]:
    """Return what was measured of a method and of its last members, everywhere, with w0 beside it."""
    found = [quality for name in filter(is_recorded, ON_CARDS) for quality in qualities_of_run(name)]
    places = {quality.where for quality in found if base_of(quality.row) == method}
    return [q for q in found if q.where in places and base_of(q.row) in (method, START)]


def qualities_of_run(name: str) -> Iterator[Quality]:
    """Yield the rows of a recorded run; the metric is the first that its tables have."""
    results = recorded_run(name).results
    first = shown_metrics(results)[0]
    for row, of_row in by_method(results).items():

        def estimate(metric: str, part: str, rows: list[ComparisonRow] = of_row) -> Estimate | None:
            found = [measured(each, part) for each in rows]
            return Estimate.of([metrics[metric] for metrics in found if metrics]) if all(found) else None

        quality = estimate(first.name, AS_PREDICTED)
        yield Quality(
            ON_CARDS[name],
            row,
            str(of_row[0].members),
            f"{of_row[0].bytes / of_row[0].bytes_of_one:.3g}x",
            f"{show(quality and quality.scaled(first.factor), first.digits)} {first.unit or first.label}",
            show(estimate("nll", AS_PREDICTED), 4),
            show(estimate("nll", AT_TEMPERATURE), 4),
        )


def show(estimate: Estimate | None, digits: int, *, signed: bool = False) -> str:
    """Return a mean with its standard error."""
    if estimate is None:
        return NO_NUMBER
    sign = "+" if signed else ""
    error = "" if estimate.error is None else f" ± {estimate.error:.{digits}f}"
    return f"{estimate.mean:{sign}.{digits}f}{error}"
