"""Tables of a comparison: methods, calibration, differences, the paper's numbers, and runs."""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import Any

from pfge.connectivity.fitting import mode_connectivity
from pfge.lab.config.settings import Experiment
from pfge.lab.run.results import ComparisonRow, ConnectivityRow
from pfge.methods import row_order
from pfge.reports.appearance import is_for_reference
from pfge.reports.run import Run
from pfge.reports.statistics import (
    Estimate,
    MethodSummary,
    best_by,
    by_method,
    is_comparable,
    main_metrics,
    of_shared_seeds,
    over_seeds,
    shared_seeds,
    shown_metrics,
    summarize,
    task_of,
)
from pfge.reports.tables.table import (
    LAST_MEMBERS,
    BestMark,
    Cell,
    Column,
    Count,
    Interval,
    Missing,
    Number,
    Ratio,
    Row,
    Table,
    Text,
    best_notes,
    columns,
    method_row,
)
from pfge.reports.verdicts import Gap
from pfge.tasks import Metric, MultiLabel, Regression, Task


def methods_table(rows: Sequence[ComparisonRow], part: str = "test") -> Table:
    """Return a row for each method over its seeds; the best of each metric over shared seeds is marked."""
    found = summarize(rows, part)
    metrics = shown_metrics(rows, part)
    shared = of_shared_seeds(rows)
    ranked = summarize(shared, part)
    best = {
        metric: best_by(metric, {row.method: row.metrics[metric.name].mean for row in ranked})
        for metric in metrics
        if is_comparable(task_of(rows), metric, part)
    }
    unranked = [metric.label for metric in metrics if metric not in best]

    def number(row: MethodSummary, metric: Metric) -> Number:
        return Number.of_metric(metric, row.metrics[metric.name], best=row.method in best.get(metric, ()))

    def shown(row: MethodSummary) -> Row:
        return method_row(
            row.method,
            Count(row.members),
            Count(row.bytes),
            Ratio(row.relative_bytes, digits=6),
            *(number(row, metric) for metric in metrics),
            Count(row.iterations, note=f"{row.trainings} trainings" if row.trainings > 1 else ""),
            reference=is_for_reference(row.method),
        )

    heads = [metric.head for metric in metrics]
    return Table(
        "methods",
        "methods",
        columns("method", "members", "bytes", "memory", *heads, "iterations"),
        [shown(row) for row in found],
        [
            *over_seeds(rows),
            *best_notes({row.seed for row in shared}, {row.seed for row in rows}),
            *([f"{', '.join(unranked)} are not ranked before they are calibrated"] if unranked else []),
            LAST_MEMBERS,
            "memory relative to one model",
            "iterations beyond w0.",
        ],
    )


def calibration_table(rows: Sequence[ComparisonRow], part: str = "test") -> Table | None:
    """Return a row for each method that has temperatures; None if none has."""
    metrics = [metric for metric in shown_metrics(rows) if metric.uses_confidence]
    found = []
    for method, of_method in by_method(rows).items():
        # The temperature, and the metrics as predicted, at it, and at the members' own.
        fitted = [
            (at.temperature, row.metrics[part], at.metrics[part], at_members.metrics[part])
            for row in of_method
            if (at := row.calibrated)
            and (at_members := row.calibrated_members)
            and part in at.metrics.keys() & at_members.metrics.keys()
        ]
        if not fitted:
            continue
        temperatures, *kinds = zip(*fitted, strict=True)
        means = [fmean(t) if isinstance(t, Sequence) else t for t in temperatures]
        numbers = [
            Number.of_metric(metric, Estimate.of([measured[metric.name] for measured in kind]))
            for metric in metrics
            for kind in kinds
        ]
        found.append(method_row(method, Number.of(Estimate.of(means), 3), *numbers))
    if not found:
        return None
    heads = [f"{metric.head}{kind}" for metric in metrics for kind in ("", " at T", " at members' T")]
    note = f"T: {_fitted(task_of(rows))} fitted on validation data, of the mean, or one of each member."
    return Table("calibration", "calibration", columns("method", "T", *heads), found, [note])


def _fitted(task: Task) -> str:
    match task:
        case Regression(noise="fixed"):
            return "the variance of the noise"
        case Regression():
            return "the factor on the variance"
        case MultiLabel():
            return "the mean of the labels' temperatures"
    return "the temperature"


def differences_table(
    gaps: Mapping[str, Mapping[str, Gap]], reference: str, *, calibrated: bool = False
) -> Table | None:
    """Return a row for each method that has an interval in every metric; None if none has.

    Args:
        gaps: Gaps by method and metric.
        reference: The method that the others are compared with.
        calibrated: Whether methods are compared calibrated, which the title and the note state.
    """
    found_gaps = [gap for found in gaps.values() for gap in found.values()]
    metrics = list(dict.fromkeys(gap.metric for gap in found_gaps))
    rows = [
        method_row(
            method,
            *(cell for metric in metrics for cell in _cells(found[metric.name])),
            Text(", ".join(f"{gap.metric.label} {gap.verdict}" for gap in found.values())),
            _missing(found),
        )
        for method, found in gaps.items()
        if all(metric.name in found and found[metric.name].interval for metric in metrics)
    ]
    if not rows:
        return None
    columns = [Column("method", align="left")]
    for metric in metrics:
        head = f"{metric.label}, points" if metric.unit == "%" else metric.label
        columns += [Column(head), Column("95 % interval", name=f"{head} 95 % interval")]
    columns += [Column("verdict", align="left"), Column("would decide it", align="left")]
    return Table(
        "differences",
        f"differences from {reference}{', calibrated' if calibrated else ''}",
        columns,
        rows,
        _notes(
            found_gaps, f"{reference}, calibrated on validation data" if calibrated else reference, len(gaps)
        ),
    )


def _notes(gaps: list[Gap], reference: str, methods: int) -> list[str]:
    sample = gaps[0]
    sources = f"{sample.called} and seeds"
    if any(gap.seed_error is None for gap in gaps):
        sources = f"{sample.called} alone where there is one seed, which decides nothing"
    margins = dict.fromkeys(f"{gap.margin_in_words} in {gap.metric.label}" for gap in gaps)
    together = f", for all {methods} methods together (Bonferroni) in each metric" if methods > 1 else ""
    closer = dict.fromkeys(gap.metric for gap in gaps if gap.metric.better == "closer")
    return [
        f"Each method minus {reference}, with the 95 % interval over {sources}{together}",
        *(f"better or worse in {metric.label}: {_excludes_the_aim(metric)}" for metric in closer),
        f"equal: the interval lies within the margin, {', '.join(margins)}",
        "undecided: the interval contains 0 and extends beyond the margin.",
    ]


def _excludes_the_aim(metric: Metric) -> str:
    aim = f"{metric.factor * (metric.aim or 0.0):g} {metric.unit}".rstrip()
    return f"the interval of the mean of both methods excludes {aim} too"


def _cells(gap: Gap) -> list[Cell]:
    factor, digits = gap.metric.factor, gap.metric.digits
    low, high = gap.interval or (gap.mean, gap.mean)
    return [
        Number(factor * gap.mean, digits=digits, signed=True),
        Interval(factor * low, factor * high, digits),
    ]


def _missing(gaps: Mapping[str, Gap]) -> Cell:
    """Return what would decide each metric; once if it is the same for all that are undecided."""
    missing = {gap.metric.label: gap.missing for gap in gaps.values() if gap.missing}
    if not missing:
        return Missing()
    if len(set(missing.values())) == 1:
        return Text(next(iter(missing.values())))
    return Text("; ".join(f"{label}: {text}" for label, text in missing.items()))


def runs_table(runs: Mapping[str, Run]) -> Table | None:
    """Return a row for each method and run; None if fewer than two have results, or of different tasks.

    Args:
        runs: Runs by unique names.
    """
    found = {name: run for name, run in runs.items() if run.results}
    if len(found) < 2 or len({run.task for run in found.values()}) > 1:
        return None
    summaries = {name: {row.method: row for row in summarize(run.results)} for name, run in found.items()}
    rows = [row for of_run in summaries.values() for row in of_run.values()]
    (task,) = {run.task for run in found.values()}
    metrics = main_metrics(task, [row.metrics for row in rows])
    shared = set.intersection(*(shared_seeds(run.results) for run in found.values()))
    ranked = {
        (name, row.method): row
        for name, run in found.items()
        for row in summarize([result for result in run.results if result.seed in shared])
    }
    best = {
        metric: best_by(metric, {place: row.metrics[metric.name].mean for place, row in ranked.items()})
        for metric in metrics
        if is_comparable(task, metric)
    }

    def line(method: str, name: str, row: MethodSummary) -> Row:
        numbers = [
            Number.of_metric(metric, row.metrics[metric.name], best=(name, method) in best.get(metric, ()))
            for metric in metrics
        ]
        seeds = Count(len({result.seed for result in found[name].results if result.method == method}))
        return method_row(method, Text(name), seeds, Count(row.members), Ratio(row.relative_bytes), *numbers)

    methods = row_order(dict.fromkeys(method for of_run in summaries.values() for method in of_run))
    lines = [
        line(method, name, of_run[method])
        for method in methods
        for name, of_run in summaries.items()
        if method in of_run
    ]
    without = [name for name in runs if name not in found]
    numbers = columns("run", "seeds", "members", "memory", *(metric.head for metric in metrics))
    heads = [Column("method", align="left"), *numbers]
    notes: list[str | BestMark] = [
        "mean ± standard error over the seeds of a run",
        *best_notes(shared, {seed for run in found.values() for seed in run.seeds}),
        LAST_MEMBERS,
        "memory relative to one model of the run",
        "means of runs with different test data do not compare methods.",
    ]
    if without:
        notes.append(f"No results yet: {', '.join(without)}.")
    return Table("runs", "all runs", heads, lines, notes)


def name_runs(runs: Sequence[Run]) -> dict[str, Run]:
    """Return runs by their names, with the folder where a name is there more than once."""
    names = [run.name for run in runs]
    found: dict[str, Run] = {}
    for run in runs:
        name = run.name if names.count(run.name) == 1 else f"{run.name} ({run.folder.path})"
        while name in found:
            name += ", again"
        found[name] = run
    return found


SOURCE = "the paper: Guo, Jin and Liu, ICIC 2023, mean ± standard error over at least three runs"
SETTINGS = "the paper's settings are those of configs/paper"
ACCURACY = "accuracy"


def paper_tables(
    experiment: Experiment, rows: Sequence[ComparisonRow], connectivity: Sequence[ConnectivityRow]
) -> list[Table]:
    """Return accuracy and mode connectivity beside the paper's, where it has the data and the model."""
    tables = [_accuracy(experiment, rows), _connectivity(experiment, connectivity)]
    return [table for table in tables if table]


def paper_accuracies(data: str) -> dict[str, dict[str, tuple[float, float]]]:
    """Return what the paper printed for a data set, by method and model: percent and their standard error."""
    of_data: dict[str, dict[str, Sequence[float]]] = _numbers()["accuracy"][data]
    return {
        method: {model: (mean, error) for model, (mean, error) in of_models.items()}
        for method, of_models in of_data.items()
    }


def _accuracy(experiment: Experiment, rows: Sequence[ComparisonRow]) -> Table | None:
    if not rows or not (printed := _printed("accuracy", experiment)):
        return None
    metric = next((metric for metric in task_of(rows).metrics if metric.name == ACCURACY), None)
    if metric is None:
        return None
    measured = {row.method: Number.of_metric(metric, row.metrics[ACCURACY]) for row in summarize(rows)}
    in_paper = {name: Number(mean, error, metric.digits) for name, (mean, error) in printed.items()}
    return _table("paper", "accuracy beside the paper's", metric.head, measured, in_paper, over_seeds(rows))


def _connectivity(experiment: Experiment, rows: Sequence[ConnectivityRow]) -> Table | None:
    if not rows or not (printed := _printed("connectivity", experiment)):
        return None
    measured = {
        method: Number.of(Estimate.of([mode_connectivity(pair.trace) for pair in pairs]), 3)
        for method, pairs in by_method(rows).items()
    }
    in_paper = {name: Number(value, digits=3) for name, value in printed.items()}
    title = "mode connectivity beside the paper's"
    return _table("paper-connectivity", title, "mode connectivity", measured, in_paper, [])


def _table(
    key: str,
    title: str,
    head: str,
    measured: Mapping[str, Cell],
    printed: Mapping[str, Cell],
    notes: Sequence[str],
) -> Table:
    names = [name for name in row_order({*measured, *printed}) if name in printed]
    rows = [method_row(name, measured.get(name, Missing()), printed[name]) for name in names]
    return Table(key, title, columns("method", head, f"{head}, paper"), rows, [*notes, SOURCE, SETTINGS])


def _printed(what: str, experiment: Experiment) -> dict[str, Any]:
    """Return the paper's number of each method; none if it has not this data and model."""
    of_data = _numbers()[what].get(experiment.data.name, {})
    model = experiment.model.name
    return {method: of_models[model] for method, of_models in of_data.items() if model in of_models}


@cache
def _numbers() -> dict[str, Any]:
    return tomllib.loads((files("pfge.reports.tables") / "paper.toml").read_text(encoding="utf-8"))
